"""Facts: one script for every shell, one strict answer."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.config.environment import Environment, EnvironmentKind
from remote_tool.config.model import Config
from remote_tool.environments.facts import ServerFacts, facts_script, parse_facts
from remote_tool.errors import EnvironmentSetupError
from remote_tool.paths import LocalPaths, RemotePaths
from remote_tool.transport.ssh.script import SYSTEM_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = [
    shell
    for shell in (["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"], ["zsh", "--emulate", "sh"], ["ksh"])
    if shutil.which(shell[0])
]
WORST_NAME = 'a project\'s "name"; $(touch here)\nand `more`'


def config_for(
    tmp_path: Path, name: str = "project", environment: Environment | None = None, python: str | None = None
) -> Config:
    local, remote = LocalPaths(tmp_path), RemotePaths(name)
    return Config(
        name=name, servers={}, local=local, remote=remote, python=python, environment=environment or Environment()
    )


def ask(
    home: Path,
    config: Config,
    shell: list[str] | None = None,
    *,
    path: str = "",
    login_shell: str = "/bin/sh",
    **wishes: bool,
) -> ServerFacts:
    script = f"{SYSTEM_PATH}\n{facts_script(config, '0123', **wishes)}"
    program = [shutil.which((shell or ["sh"])[0]) or "sh", *(shell or ["sh"])[1:], "-s"]
    environment = {"HOME": str(home), "PATH": path or "/usr/bin:/bin", "SHELL": login_shell}
    done = subprocess.run(program, input=script.encode(), capture_output=True, env=environment, check=True)
    assert done.stderr == b""
    return parse_facts("first", done.stdout)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "server's home"
    folder.mkdir()
    yield folder
    assert not (folder / "here").exists(), "a name was run as a command"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_every_posix_shell_gives_the_same_answer(home: Path, tmp_path: Path, shell: list[str]) -> None:
    scripts = home / WORST_NAME / ".remote-scripts"
    (scripts / "supervisor-0123").mkdir(parents=True)
    (scripts / "packages").write_text("fingerprint\n")
    (scripts / "sync").write_text("complete 77")
    (scripts / "sent").write_bytes(b"")
    facts = ask(home, config_for(tmp_path, WORST_NAME), shell)
    assert (facts.rsync_version, facts.sent_sha256) == ("", ""), "what prepare does not need takes no time"
    facts = ask(home, config_for(tmp_path, WORST_NAME), shell, look_only=True, compare=True)
    assert facts.home == str(home)
    assert facts.machine == os.uname().machine
    assert facts.uid == os.getuid()
    assert facts.libc in {"glibc", "musl"}
    assert facts.free_kilobytes is not None
    assert facts.free_kilobytes > 0
    assert facts.rsync == shutil.which("rsync", path="/usr/bin:/bin")
    assert facts.rsync_version.startswith("rsync")
    assert (facts.packages, facts.sync_state, facts.has_supervisor) == ("fingerprint", "complete 77", True)
    assert facts.sent_sha256 == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert facts.bad_folders == ()


def test_an_empty_home_has_nothing_of_ours(home: Path, tmp_path: Path) -> None:
    facts = ask(home, config_for(tmp_path))
    assert (facts.activation, facts.packages, facts.sync_state, facts.has_supervisor) == (None, "", "", False)
    assert facts.probed
    assert list(home.iterdir()) == []


@pytest.mark.row(55)
def test_programs_are_found_though_the_path_has_nothing(home: Path, tmp_path: Path) -> None:
    """A session without a terminal may have any PATH."""
    facts = ask(home, config_for(tmp_path), path="/nonexistent")
    assert facts.rsync
    assert facts.pythons


def stub(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.mark.row(33)
def test_what_calls_itself_python_is_asked_for_its_version(home: Path, tmp_path: Path) -> None:
    """An old one, one that fails, and a wrapper that asks are told from a Python."""
    stubs = tmp_path / "stubs"
    stub(stubs, "python3", "echo 'Install python3? [y/n]'; read answer")
    stub(stubs, "python3.8", "exit 1")
    stub(stubs, "python3.9", "echo 3.9.18 0")
    facts = ask(home, config_for(tmp_path), path=f"{stubs}:/bin:/usr/bin")
    versions = {python.version: python for python in facts.pythons}
    assert versions["3.9.18"].path == str(stubs / "python3.9")
    assert not versions["3.9.18"].makes_environments
    assert not {str(stubs / "python3"), str(stubs / "python3.8")} & {python.path for python in facts.pythons}


def conda_at(base: Path) -> str:
    stub(base / "bin", "python", "true")
    return str(stub(base / "bin", "conda", "true"))


def test_the_conda_of_the_wished_kind_comes_first(home: Path, tmp_path: Path) -> None:
    mini, forge = conda_at(home / "miniconda3"), conda_at(home / "miniforge3")
    for kind, first in ((EnvironmentKind.MINICONDA, mini), (EnvironmentKind.MINIFORGE, forge)):
        facts = ask(home, config_for(tmp_path, environment=Environment(kind)))
        assert facts.condas[0] == first
        assert set(facts.condas) >= {mini, forge}


def test_a_conda_on_the_path_of_the_login_shell_is_found(home: Path, tmp_path: Path) -> None:
    conda = conda_at(tmp_path / "somewhere")
    (home / ".profile").write_text(f"echo welcome; PATH='{tmp_path}/somewhere/bin':$PATH; export PATH\n")
    assert ask(home, config_for(tmp_path)).condas == (conda,)


def test_a_conda_that_the_login_shell_has_as_a_function_is_found(home: Path, tmp_path: Path) -> None:
    """``conda init`` makes a function of conda; CONDA_EXE then names the program."""
    conda = conda_at(tmp_path / "somewhere")
    (home / ".profile").write_text(f"conda() {{ :; }}; export CONDA_EXE='{conda}'\n")
    assert ask(home, config_for(tmp_path)).condas == (conda,)


@pytest.mark.parametrize("name", ["miniconda", "anaconda3", "mambaforge", "miniforge3"])
def test_a_conda_of_another_name_in_the_home_is_found(name: str, home: Path, tmp_path: Path) -> None:
    conda = conda_at(home / name)
    assert conda in ask(home, config_for(tmp_path)).condas


def test_a_conda_that_only_an_interactive_shell_has_is_found(home: Path, tmp_path: Path) -> None:
    """``conda init`` writes into .bashrc, and on Debian that does nothing in other shells."""
    conda = conda_at(tmp_path / "somewhere")
    (home / ".profile").write_text('. "$HOME/.bashrc"\n')
    (home / ".bashrc").write_text(f'case $- in *i*) ;; *) return ;; esac\nPATH="{Path(conda).parent}:$PATH"\n')
    assert ask(home, config_for(tmp_path), login_shell="/bin/bash").condas == (conda,)
    (home / ".profile").unlink()
    assert ask(home, config_for(tmp_path), login_shell="/bin/bash").condas == (conda,)


@pytest.mark.slow
def test_start_up_files_that_never_end_or_leave_something_behind_hold_up_nothing(home: Path, tmp_path: Path) -> None:
    (home / ".bashrc").write_text("trap '' TERM; sleep 60 & while :; do sleep 1; done\n")
    began = time.monotonic()
    assert ask(home, config_for(tmp_path), login_shell="/bin/bash").condas == ()
    assert time.monotonic() - began < 50


def test_half_a_conda_is_no_conda(home: Path, tmp_path: Path) -> None:
    stub(home / "miniconda3" / "bin", "conda", "true")
    assert ask(home, config_for(tmp_path)).condas == ()


def test_uv_is_found_where_its_installer_puts_it(home: Path, tmp_path: Path) -> None:
    uv = stub(home / ".local" / "bin", "uv", "true")
    assert ask(home, config_for(tmp_path)).uv == str(uv)


def test_our_own_uv_is_found(home: Path, tmp_path: Path) -> None:
    uv = stub(home / "project" / ".remote-scripts" / "tools" / "bin", "uv", "true")
    assert ask(home, config_for(tmp_path)).uv == str(uv)


def test_the_existing_prefix_is_found_below_the_home(home: Path, tmp_path: Path) -> None:
    stub(home / "my env" / "bin", "python3", "echo 3.12.4 1")
    environment = Environment(EnvironmentKind.EXISTING, prefix="~/my env")
    facts = ask(home, config_for(tmp_path, environment=environment))
    assert facts.existing is not None
    assert (facts.existing.path, facts.existing.version) == (f"{home}/my env/bin/python3", "3.12.4")


def test_a_working_environment_spares_the_search_for_others(home: Path, tmp_path: Path) -> None:
    """A second prepare asks little: no interpreter but the environment's own is started."""
    stub(home / "project" / ".remote-scripts", "python", "echo 3.11.2 1")
    facts = ask(home, config_for(tmp_path))
    assert (facts.environment_python, facts.probed, facts.pythons) == ("3.11.2", False, ())
    assert ask(home, config_for(tmp_path), probe=True).pythons


def test_a_link_to_a_removed_environment_is_no_environment(home: Path, tmp_path: Path) -> None:
    scripts = home / "project" / ".remote-scripts"
    scripts.mkdir(parents=True)
    (scripts / "python").symlink_to("environment/bin/python")
    assert ask(home, config_for(tmp_path)).environment_python == ""


@pytest.mark.row(113)
def test_a_link_in_the_place_of_our_folder_is_named(home: Path, tmp_path: Path) -> None:
    """What it leads to stays as it is."""
    (home / "project").mkdir()
    (home / "elsewhere").mkdir(mode=0o755)
    (home / "project" / ".remote-scripts").symlink_to(home / "elsewhere")
    assert ask(home, config_for(tmp_path)).bad_folders == ("link:project/.remote-scripts",)
    assert (home / "elsewhere").stat().st_mode & 0o777 == 0o755


def test_a_project_may_be_a_link_to_a_larger_disk(home: Path, tmp_path: Path) -> None:
    (home / "disk").mkdir()
    (home / "project").symlink_to(home / "disk")
    assert ask(home, config_for(tmp_path)).bad_folders == ()


@pytest.mark.row(113)
def test_our_folders_are_closed_to_others(home: Path, tmp_path: Path) -> None:
    """Nobody else may write to the project, nor look into what is ours in it."""
    scripts = home / "project" / ".remote-scripts"
    scripts.mkdir(parents=True)
    scripts.chmod(0o755)
    scripts.parent.chmod(0o777)
    assert ask(home, config_for(tmp_path)).bad_folders == ()
    assert scripts.stat().st_mode & 0o777 == 0o700
    assert scripts.parent.stat().st_mode & 0o777 == 0o775


@pytest.mark.row(113)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_of_another_user_is_named(home: Path, tmp_path: Path) -> None:
    (home / "project" / ".remote-scripts").mkdir(parents=True)
    os.chown(home / "project" / ".remote-scripts", 12345, 12345)
    assert ask(home, config_for(tmp_path)).bad_folders == ("owner:project/.remote-scripts",)


GOOD = b"home=/h\0machine=m\0system=Linux\0uid=0\0libc=glibc\0probed=yes\0end=\0"


def test_a_whole_answer_is_read() -> None:
    assert parse_facts("first", GOOD) == ServerFacts("first", "/h", "m", "Linux", 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        GOOD[:-6],
        GOOD + b"more",
        b"Welcome\n\0" + GOOD,
        GOOD.replace(b"uid=0", b"uid=root"),
        GOOD.replace(b"home=/h\0", b""),
        GOOD.replace(b"probed=yes\0", b"interpreter=3.11.2\0probed=yes\0"),
    ],
)
def test_an_answer_that_is_cut_or_strange_is_refused(answer: bytes) -> None:
    with pytest.raises(EnvironmentSetupError, match="first"):
        parse_facts("first", answer)


@pytest.mark.row(15)
@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ("KillUserProcesses=yes", True),
        ("KillUserProcesses=yes KillExcludeUsers=somebody", True),
        ("KillUserProcesses=yes KillExcludeUsers='somebody {user}'", False),
        ("KillUserProcesses=yes KillOnlyUsers=somebody", False),
        ("KillUserProcesses=yes KillOnlyUsers={user}", True),
        ("KillUserProcesses=no", False),
    ],
)
def test_a_systemd_that_ends_processes_at_logout_is_known(
    home: Path, tmp_path: Path, settings: str, *, ends: bool
) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    words = settings.format(user=user)
    stub(tmp_path / "stubs", "loginctl", f'[ "$1" = show-user ] && for word in {words}; do echo "$word"; done')
    facts = ask(home, config_for(tmp_path), path=f"{tmp_path / 'stubs'}:/bin:/usr/bin")
    assert (facts.username, facts.ends_sessions) == (user, ends)
