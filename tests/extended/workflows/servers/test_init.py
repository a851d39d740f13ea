"""init writes files that mean what was asked for, all of them or none, over nothing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote_tool.config.loading import load
from remote_tool.errors import ConfigError, UsageError
from remote_tool.paths import LocalPaths
from remote_tool.system import files as files_module
from remote_tool.workflows.servers.init import (
    EXCLUDES,
    InitAnswers,
    ServerAnswer,
    check_answers,
    parse_server_option,
    write_workspace,
)

ANSWERS = InitAnswers("digits", (ServerAnswer("gpu1", "10.0.0.5", "ubuntu", 2222), ServerAnswer("no", "fd00::5")))


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("gpu1=ubuntu@10.0.0.5:2222", ServerAnswer("gpu1", "10.0.0.5", "ubuntu", 2222)),
        ("gpu1=10.0.0.5", ServerAnswer("gpu1", "10.0.0.5")),
        ("lab=me@[fd00::5]:22", ServerAnswer("lab", "fd00::5", "me", 22)),
        ("lab=[::1]", ServerAnswer("lab", "::1")),
        ("a=me@example.org@host", ServerAnswer("a", "host", "me@example.org")),
        ("gpu-lab", ServerAnswer("gpu-lab", "gpu-lab")),
        ("me@gpu.example.org:22", ServerAnswer("gpu.example.org", "gpu.example.org", "me", 22)),
        ("[fd00::5]", ServerAnswer("fd00--5", "fd00::5")),
        ("[::1]", ServerAnswer("1", "::1")),
        ("[::]", ServerAnswer("server", "::")),
        ("  a=b  ", ServerAnswer("a", "b")),
    ],
)
def test_a_server_is_read_from_an_option(text: str, answer: ServerAnswer) -> None:
    assert parse_server_option(text) == answer


@pytest.mark.row(108)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the host must be"),
        ("a=", "the host must be"),
        ("=b", "the name must be"),
        ("a=@b", "the user must be"),
        ("a=b:", "the port must be a whole number from 1 to 65535"),
        ("a=b:0", "the port must be"),
        ("a=b:65536", "the port must be"),
        ("a=b:" + "9" * 5000, "the port must be"),
        ("a=b:x", "the port must be"),
        ("a=::1", "in brackets"),
        ("a=fd00::5:22", "in brackets"),
        ("a=[b]", "the host must be"),
        ("a=-oProxyCommand=x", "the name must be"),
        ("-oProxyCommand", "the host must be"),
        ("a=-l@b", "the user must be"),
        ("a=u;id@b", "the user must be"),
        ("-a=b", "the name must be"),
        ("../a=b", "the name must be"),
        ("a b=c", "the name must be"),
        ("a=b c", "the host must be"),
        ("a=b%h", "the host must be"),
        ("a=b\nc", "the host must be"),
    ],
)
def test_an_option_that_is_no_server_says_why(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_server_option(text)
    assert "--server NAME=USER@HOST:PORT" in caught.value.hint


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_option_is_a_server_that_can_be_written_or_refused(text: str) -> None:
    try:
        answer = parse_server_option(text)
    except UsageError:
        return
    assert check_answers(Path("/x/project"), InitAnswers("", (answer,)))


def test_what_is_written_says_what_was_asked_for(tmp_path: Path) -> None:
    written = write_workspace(tmp_path, ANSWERS)
    assert written == [tmp_path / ".remote/configs.yaml", tmp_path / ".remote/exclude.txt"]
    config = load(tmp_path)
    assert config.name == "digits"
    assert config.servers["gpu1"].hostname == "10.0.0.5"
    assert (config.servers["gpu1"].username, config.servers["gpu1"].port) == ("ubuntu", 2222)
    assert (config.servers["no"].hostname, config.servers["no"].username) == ("fd00::5", None)


def test_what_is_often_left_out_is_proposed_behind_a_comment(tmp_path: Path) -> None:
    for name in ("data", "wandb", "src", ".venv"):
        (tmp_path / name).mkdir()
    (tmp_path / "runs").touch()
    write_workspace(tmp_path, InitAnswers("x", ()))
    text = LocalPaths(tmp_path).exclude_file.read_text()
    assert text.removeprefix(EXCLUDES).splitlines()[1:] == ["# /data", "# /wandb"]


def test_what_is_written_is_readable(tmp_path: Path) -> None:
    write_workspace(tmp_path, InitAnswers("digits", (ServerAnswer("gpu1", "10.0.0.5", "me", 22),), "~/.ssh/lab key"))
    assert (
        (tmp_path / ".remote/configs.yaml").read_text()
        == """\
# Servers and settings of this project; docs/configuration.md or man remote-tool-configs explains every key.
name: digits   # the project's folder in the home folder on each server
# python: "3.11"           # default: the version that runs remote-tool
# environment: miniconda   # or miniforge, uv, venv, {existing: /path/to/prefix}
servers:
  gpu1:
    hostname: 10.0.0.5
    username: me
    port: 22
    private_key: "~/.ssh/lab key"
"""
    )


def test_a_workspace_without_servers_can_be_completed_by_hand(tmp_path: Path) -> None:
    root = tmp_path / "digits"
    root.mkdir()
    write_workspace(root, InitAnswers("", ()))
    config = load(root)
    assert (config.name, config.servers) == ("digits", {})


NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True) | st.sampled_from(
    ["no", "Yes", "null", "1e3", "0x1f", "1_000", "3.10", "12", "2020-01-01", "y", "1.0e3", "0o7", "_", "on"]
)
HOSTS = NAMES | st.ip_addresses().map(str)
USERS = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,20}", fullmatch=True)
KEYS = st.none() | st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable() and text[0] != "~")
SERVERS = st.lists(
    st.builds(ServerAnswer, NAMES, HOSTS, USERS, st.none() | st.integers(1, 65535)),
    max_size=4,
    unique_by=(lambda server: server.name, lambda server: server.hostname.lower()),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.builds(InitAnswers, NAMES, SERVERS.map(tuple), KEYS))
@example(InitAnswers("no", (ServerAnswer("1e3", "on"),), "keys/\U0001f511: 'é' \"#\\"))
def test_whatever_is_written_is_read_back_the_same(answers: InitAnswers) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_workspace(root, answers)
        config = load(root)
    assert config.name == answers.name
    found = [ServerAnswer(each.name, each.hostname, each.username, each.port) for each in config.servers.values()]
    assert tuple(found) == answers.servers
    assert {each.private_key for each in config.servers.values()} <= {
        root / answers.private_key if answers.private_key else None
    }


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (InitAnswers("../a", ()), "The project's name must be"),
        (InitAnswers("a", (ServerAnswer("b c", "d"),)), "The name of a server must be"),
        (InitAnswers("a", (ServerAnswer("b", "-d"),)), "The host of b must be"),
        (InitAnswers("a", (ServerAnswer("b", "d", "e;f"),)), "The user of b must be"),
        (InitAnswers("a", (ServerAnswer("b", "d", port=0),)), "The port of b must be"),
        (InitAnswers("a", (ServerAnswer("b", "d"), ServerAnswer("b", "e"))), "Two servers are called b"),
        (InitAnswers("a", (), "a\nb"), "The private key must be"),
        (InitAnswers("a", (), "a\udcff"), "The private key must be"),
        (InitAnswers("a", (), "~other/key"), "The private key must be"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_before_anything_is_written(
    answers: InitAnswers, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        write_workspace(tmp_path, answers)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_cannot_be_the_projects_asks_for_a_name(tmp_path: Path) -> None:
    root = tmp_path / "My Project"
    root.mkdir()
    with pytest.raises(UsageError, match="found 'My Project'") as caught:
        write_workspace(root, InitAnswers("", ()))
    assert "init --name" in caught.value.hint


@pytest.mark.row(98)
def test_one_machine_under_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"servers\.b: is the same machine as a"):
        write_workspace(tmp_path, InitAnswers("x", (ServerAnswer("a", "h"), ServerAnswer("b", "h"))))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["configs.yaml", "exclude.txt"])
@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing"])
def test_nothing_is_overwritten_and_nothing_written_beside_it(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / ".remote" / name
    path.parent.mkdir()
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=rf"\.remote/{name} already exists; nothing was written"):
        write_workspace(tmp_path, ANSWERS)
    assert list(path.parent.iterdir()) == [path]
    assert files(tmp_path) == ({f".remote/{name}": b"mine"} if kind == "file" else {})
    assert not (tmp_path / "nowhere").exists()


def test_a_gitignore_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / ".remote").mkdir()
    (tmp_path / ".remote" / ".gitignore").write_text("mine")
    write_workspace(tmp_path, ANSWERS)
    assert files(tmp_path)[".remote/.gitignore"] == b"mine"


def test_only_whole_files_with_their_own_names_are_left(tmp_path: Path) -> None:
    write_workspace(tmp_path, ANSWERS)
    assert sorted(files(tmp_path)) == [".remote/.gitignore", ".remote/configs.yaml", ".remote/exclude.txt"]


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ".remote").write_text("a file")
    with pytest.raises(UsageError, match="Cannot write to"):
        write_workspace(tmp_path, ANSWERS)
    assert files(tmp_path) == {".remote": b"a file"}


@pytest.mark.parametrize("name", ["configs.yaml", "exclude.txt", ".gitignore"])
def test_when_one_file_cannot_be_written_none_is_there(name: str, tmp_path: Path) -> None:
    """A folder stands where the file would be written first, as a full disk would refuse it."""
    (tmp_path / ".remote" / f".{name}.{os.getpid()}").mkdir(parents=True)
    with pytest.raises(UsageError, match="Cannot write to"):
        write_workspace(tmp_path, ANSWERS)
    assert files(tmp_path) == {}


@pytest.mark.parametrize("name", ["exclude.txt", ".gitignore"])
def test_a_file_that_appears_meanwhile_is_kept_and_none_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".remote" / name
    real = files_module._write_and_sync

    def write_and_be_overtaken(target: Path, data: bytes) -> None:
        path.write_text("theirs")
        real(target, data)

    monkeypatch.setattr(files_module, "_write_and_sync", write_and_be_overtaken)
    with pytest.raises(UsageError):
        write_workspace(tmp_path, ANSWERS)
    assert files(tmp_path) == {f".remote/{name}": b"theirs"}


def test_git_takes_the_configuration_and_leaves_keys_jobs_and_logs(tmp_path: Path) -> None:
    write_workspace(tmp_path, ANSWERS)
    for name in ("jobs/1/job.out", "logs/a.log", "known_hosts", "private_key", "private_key.pem", "lab.pem"):
        (tmp_path / ".remote" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".remote" / name).touch()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shown = subprocess.run(
        ["git", "-C", str(tmp_path), "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True
    )
    assert shown.stdout.split() == [
        *("??", ".remote/.gitignore"),
        *("??", ".remote/configs.yaml"),
        *("??", ".remote/exclude.txt"),
    ]
