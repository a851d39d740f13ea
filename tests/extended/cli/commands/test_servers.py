"""Commands about servers, as a user types them, with their whole output."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool.jobs.job import new_job_id
from tests.described import undescribed
from tests.extended.workflows.jobs.test_jobs import until
from tests.program import remote_tool
from tests.project import make_project, write_configuration
from tests.terminal import Terminal

if TYPE_CHECKING:
    from tests.conftest import MakeServer
    from tests.sshd import TestServer


def lines_in(text: str) -> list[str]:
    """Lines without those that a machine that is busy for seconds adds."""
    return [line for line in text.splitlines() if not re.search(r": (running for \d+ s|\d+ % of .*)$", line)]


def lines_of(text: str) -> list[str]:
    """Lines in an order of their own, without what differs from run to run."""
    return sorted(re.sub(r"\d+\.\d s", "N s", line) for line in text.splitlines())


@pytest.mark.slow
def test_preparing_twice_says_that_nothing_had_to_be_done(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("gpu1")
    root = make_project(tmp_path / "project", [server])
    first = remote_tool("prepare", cwd=root)
    assert (first.returncode, first.stdout) == (0, "")
    host_key, *steps, ready, end = [re.sub(r"\d+\.\d s", "N s", line) for line in lines_in(first.stderr)]
    assert re.fullmatch(rf"gpu1: new host key of 127.0.0.1:{server.port} accepted: SHA256:\S+", host_key)
    assert [line.split(" (")[0] for line in steps if "packages" not in line] == [
        "gpu1: environment: done",
        "gpu1: rsync: done",
    ]
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
    assert (ready, end) == (f"gpu1  ready  {python}", "done on 1 server in N s")
    second = remote_tool("prepare", cwd=root)
    assert (second.returncode, second.stdout) == (0, "")
    line, end = lines_in(second.stderr)
    assert line == f"gpu1  ready  {python}"
    assert re.fullmatch(r"1 server already up to date \(\d+\.\d s\)", end)
    third = remote_tool("prepare", "-v", cwd=root)
    steps = [line for line in third.stderr.splitlines() if ": unchanged" in line]
    assert [re.match(r"gpu1: (\w+): unchanged", line) is not None for line in steps] == [True] * 4
    assert re.search(r"(?m)^gpu1: supervisor: unchanged, [0-9a-f]{16}$", third.stderr)


@pytest.mark.slow
def test_prepare_and_rsync_as_json(project: Path) -> None:
    # Another checkout of the same name may have sent its own state meanwhile.
    remote_tool("rsync", cwd=project)
    prepared = remote_tool("prepare", "--json", cwd=project)
    document = json.loads(prepared.stdout)
    assert (prepared.returncode, document["errors"]) == (0, [])
    assert [each["server"] for each in document["servers"]] == ["first", "second"]
    assert not any(each["changed"] for each in document["servers"])
    sent = json.loads(remote_tool("rsync", "--server", "second", "--json", cwd=project).stdout)
    assert [(each["server"], each["changed"]) for each in sent["servers"]] == [("second", False)]
    assert undescribed([document, sent]) == set()


def test_a_dry_run_lists_what_would_be_sent_and_sends_nothing(
    project: Path, servers: tuple[TestServer, TestServer]
) -> None:
    # Another project of the same name may have been sent meanwhile.
    assert remote_tool("rsync", "--server", "first", cwd=project).returncode == 0
    name = f"{new_job_id()} new.py"
    (project / name).write_text("")
    try:
        listed = remote_tool("rsync", "--dry-run", "--server", "first", cwd=project)
    finally:
        (project / name).unlink()
    assert listed.returncode == 0
    assert listed.stdout == f"first: send {name}\n"
    assert re.fullmatch(r"nothing was changed \(\d+\.\d s\)", listed.stderr.splitlines()[-1])
    assert not (servers[0].home / "project" / name).exists()


@pytest.mark.row(129)
def test_run_passes_on_exact_bytes_and_the_status(project: Path) -> None:
    command = "printf 'a\\tb'; printf 'warning' >&2; exit 7"
    ran = remote_tool("run", "--server", "first", "--cmd", command, cwd=project)
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "a\tb", "warning")


def test_run_on_several_servers_names_the_server_of_each_line(project: Path) -> None:
    ran = remote_tool("run", "--cmd", "echo on $REMOTE_TOOL_SERVER; echo $K >&2", "--env", "K", "x=y z", cwd=project)
    assert (ran.returncode, lines_of(ran.stdout)) == (0, ["first  | on first", "second | on second"])
    assert lines_of(ran.stderr) == ["first  | x=y z", "second | x=y z"]


@pytest.mark.slow
def test_run_in_silence_and_as_json(project: Path) -> None:
    silent = remote_tool("run", "--cmd", "echo no; exit 3", "--silent", cwd=project)
    assert (silent.returncode, silent.stdout, silent.stderr) == (3, "", "")
    shown = remote_tool("run", "--server", "first", "--cmd", "echo out; echo err >&2; exit 3", "--json", cwd=project)
    assert (shown.returncode, shown.stderr) == (3, "")
    assert json.loads(shown.stdout) == {
        "schema": 1,
        "servers": [{"server": "first", "exit_code": 3, "stdout": "out\n", "stderr": "err\n"}],
        "errors": [],
    }


@pytest.mark.row(129)
@pytest.mark.slow
def test_some_servers_failing_is_3_and_all_failing_is_4(away: Path) -> None:
    some = remote_tool("run", "--cmd", "echo hello", cwd=away)
    assert (some.returncode, some.stdout) == (3, "first | hello\n")
    (error, hint) = [line for line in some.stderr.splitlines() if not line.startswith("first: new host key")]
    assert error.startswith("error: ")
    assert "away" in error
    assert hint.startswith("hint: ")
    everything = remote_tool("run", "--server", "away", "--cmd", "echo hello", "--json", cwd=away)
    assert everything.returncode == 4
    document = json.loads(everything.stdout)
    assert document["servers"] == []
    assert [(each["server"], f"error: {each['message']}") for each in document["errors"]] == [("away", error)]


def test_all_problems_of_a_configuration_are_shown_at_once(tmp_path: Path) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / "configs.yaml").write_text("servers:\n  a:\n    hostname: x\n    port: abc\nnmae: x\n")
    refused = remote_tool("job-list", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    problems = [line for line in refused.stderr.splitlines() if line.startswith("error: ")]
    assert len(problems) == 2
    assert any("configs.yaml:4: servers.a.port" in line for line in problems)


@pytest.mark.row(111)
@pytest.mark.parametrize("place", [("-v", "run"), ("run", "-v")])
def test_verbose_shows_remote_commands_and_no_secret(place: tuple[str, ...], project: Path) -> None:
    canary = f"canary-{new_job_id()}"
    ran = remote_tool(*place, "--server", "first", "--cmd", "echo hello", "--env", "TOKEN", canary, cwd=project)
    assert (ran.returncode, ran.stdout) == (0, "hello\n")
    assert re.search(r"(?m)^\[first\] \d+\.\d{3} s  echo hello$", ran.stderr)
    assert canary not in ran.stderr


@pytest.mark.row(111)
def test_twice_verbose_shows_the_log_of_the_ssh_library_without_secrets(project: Path) -> None:
    canary = f"canary-{new_job_id()}"
    ran = remote_tool("run", "-vv", "--server", "first", "--cmd", "true", "--env", "TOKEN", canary, cwd=project)
    assert "asyncssh: [conn=0] Connection to 127.0.0.1 port" in ran.stderr or "asyncssh: Opening" in ran.stderr
    assert canary not in ran.stderr


def test_init_takes_everything_from_options_and_overwrites_nothing(tmp_path: Path) -> None:
    options = ("--name", "digits", "--server", "gpu1=ubuntu@10.0.0.5:2222", "--server", "10.0.0.6")
    made = remote_tool("init", *options, cwd=tmp_path)
    assert (made.returncode, made.stdout) == (0, "")
    assert made.stderr == "wrote .remote/configs.yaml\nwrote .remote/exclude.txt\nnext: remote-tool prepare\n"
    written = (tmp_path / ".remote" / "configs.yaml").read_text()
    again = remote_tool("init", *options, cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.startswith("error: .remote/configs.yaml already exists; nothing was written\n")
    assert (tmp_path / ".remote" / "configs.yaml").read_text() == written


@pytest.mark.slow
def test_init_asks_again_until_an_answer_can_be_used(tmp_path: Path) -> None:
    with Terminal("init", cwd=tmp_path) as terminal:
        terminal.until("folder on servers")
        terminal.type("../evil\n")
        terminal.until("error: ")
        terminal.type("digits\n")
        terminal.until("Server 1: ")
        terminal.type("gpu1=a b\n")
        terminal.until("a b")
        terminal.until("error: ", times=2)
        terminal.type("gpu1=ubuntu@10.0.0.5\n")
        terminal.until("Server 2: ")
        terminal.type("gpu1=10.0.0.6\n")
        terminal.until("Two servers are called gpu1")
        terminal.type("\n")
        terminal.until("Private key")
        terminal.type("~/.ssh/no_such_key\n")
        terminal.until(".ssh/no_such_key")
        terminal.until("Private key", times=2)
        terminal.type("\n")
        assert terminal.end() == 0
        assert "error: No such file" in terminal.text
    written = (tmp_path / ".remote" / "configs.yaml").read_text()
    assert "name: digits" in written
    assert "username: ubuntu" in written
    assert "private_key" not in written


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path) -> None:
    with Terminal("init", cwd=tmp_path) as terminal:
        terminal.until("folder on servers")
        # Python notices a signal that comes between the prompt and its wait for the answer only with the answer.
        call = Path(f"/proc/{terminal.process.pid}/syscall")
        until(lambda: call.read_text().split()[1:2] == ["0x0"])
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.text
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_shows_a_line_per_server_while_it_works(project: Path, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(project / ".remote", root / ".remote")
    (root / "requirements.txt").write_text("")
    with Terminal("setup", "--force", cwd=root) as terminal:
        assert terminal.end() == 0
        assert re.search(r"(?m)^first: environment: done \(\d+\.\d s\)", terminal.text)
        assert re.search(r"(?m)^done on 2 servers in \d+\.\d s$", terminal.text)
        assert "connecting 0 s" in terminal.text
        assert "\x1b[32mdone" in terminal.raw.decode()


def test_no_color_leaves_colours_out_on_a_terminal(project: Path) -> None:
    with Terminal("setup", cwd=project, environment={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.raw.decode()) is None


def test_a_failing_server_is_named_at_the_end(tmp_path: Path, make_server: MakeServer) -> None:
    root = tmp_path / "project"
    (root / ".remote").mkdir(parents=True)
    write_configuration(root, [make_server("bare")], environment={"existing": "/no/such/prefix"})
    failed = remote_tool("prepare", cwd=root)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("1 of 1 server failed after ")
    assert re.search(r"(?m)^error: /no/such/prefix/bin/python on bare ", failed.stderr)


@pytest.mark.parametrize("limit", ["-S -n 12", "-n 12"])
def test_more_files_than_the_shell_allows_are_opened_where_the_system_lets_us(project: Path, limit: str) -> None:
    """Many servers need many: a shell's limit of 1024, or of 256, is raised; one of the system is named."""
    command = f'ulimit {limit}; exec "$0" -m remote_tool rsync --server first'
    ran = subprocess.run(
        ["/bin/bash", "-c", command, sys.executable], cwd=project, check=False, capture_output=True, text=True
    )
    if limit.startswith("-S"):
        assert ran.returncode == 0, ran.stderr
    else:
        assert ran.returncode != 0
        assert "oo many" in ran.stderr
        assert "hint: ulimit -n 8192" in ran.stderr
        assert "Traceback" not in ran.stderr
