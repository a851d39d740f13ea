from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.workflows.agent_program import source_archive

from .conftest import PATIENCE, PretendServer, changed_copy, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def call_raw(server: PretendServer, line: bytes) -> subprocess.CompletedProcess[bytes]:
    """Call the control program with any bytes on stdin."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(server.home), "REMOTE_TOOL_SUPERVISOR": "1"}
    arguments = [server.python, "-I", "-S", str(server.entry)]
    return subprocess.run(arguments, input=line, capture_output=True, env=environment, check=False, timeout=PATIENCE)


@pytest.mark.parametrize("line", [b"", b"\n", b"[]\n", b"{}\n", b'{"nonce": "x"}\n', b"\xff\n", b"[" * 100_000 + b"\n"])
def test_an_invalid_request_gets_only_a_plain_message(server: PretendServer, line: bytes) -> None:
    ended = call_raw(server, line)
    assert ended.returncode == 2
    assert ended.stdout == b""
    assert b"no request on stdin" in ended.stderr


@pytest.mark.parametrize(("silence", "is_answered"), [("4.0", True), ("0.2", False)])
def test_a_request_may_come_slowly_but_not_be_silent(server: PretendServer, silence: str, *, is_answered: bool) -> None:
    changes = {"agent/requests.py": {"_SILENCE_SECONDS = 60.0": f"_SILENCE_SECONDS = {silence}"}}
    package = changed_copy(server.entry.parent, server.home / "supervisor", changes)
    line = json.dumps({"nonce": "0" * 16, "op": "status", **server.folders}).encode() + b"\n"
    environment = {"PATH": os.environ["PATH"], "HOME": str(server.home), "REMOTE_TOOL_SUPERVISOR": "1"}
    with subprocess.Popen(
        [server.python, "-I", "-S", str(package / "run_control.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            for start in range(0, 50, 10):
                process.stdin.write(line[start : start + 10])
                # All in all longer than either may be silent.
                time.sleep(1)
            process.stdin.write(line[50:])
        assert (b'"jobs":[]' in process.stdout.read()) == is_answered


@pytest.mark.row(109)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "reboot"}, "Unknown operation on this server: 'reboot'"),
        ({"jobs_folder": "/etc"}, "jobs_folder cannot be '/etc'"),
        ({"jobs_folder": "a/../../b"}, "jobs_folder cannot be"),
        ({"project": ""}, "project cannot be ''"),
        ({"project": None}, "project cannot be None"),
    ],
)
def test_a_request_out_of_the_home_is_refused(server: PretendServer, changes: dict[str, Any], message: str) -> None:
    fields = {"op": "status", **server.folders, "ids": None, **changes}
    op = fields.pop("op")
    assert message in server.call(str(op), **fields)["error"]


def test_a_file_where_the_jobs_should_be_is_named(server: PretendServer) -> None:
    server.jobs.write_text("a file")
    assert f"{server.jobs} is a symbolic link or no folder" in server.call("status", ids=None)["error"]


def test_the_packages_are_known_without_a_search_and_hold_no_code(installed: Path) -> None:
    """run_control.py makes them; what an __init__ did, except to name its doors, would be missing."""
    folders = {path.parent: path.read_text() for path in (installed / "remote_tool").rglob("__init__.py")}
    listed = re.findall(r'^    "(remote_tool[^"]*)",$', (installed / "run_control.py").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.relative_to(installed).as_posix().replace("/", ".") for path in folders)
    code = [statement for text in folders.values() for statement in ast.parse(text).body]
    rest = [ast.unparse(each) for each in code if not isinstance(each, ast.Expr)]
    assert [text for text in rest if not text.startswith("__all__ = ")] == []


@pytest.mark.row(34)
def test_the_archive_has_all_that_runs_and_a_hash_of_the_contents(installed: Path) -> None:
    """Another version lies in another folder."""
    digest, files = source_archive()
    assert source_archive() == (digest, files)
    assert installed.name == f"supervisor-{digest}"
    names = {name for name, _ in files}
    assert {"run_control.py", "remote_tool/agent/control.py", "remote_tool/protocol/__init__.py"} <= names
    assert not {name for name in names if not name.startswith(("run_control.py", "remote_tool/"))}


@pytest.mark.row(34)
def test_an_update_leaves_running_jobs_alone(server: PretendServer, tmp_path: Path) -> None:
    """Another version starts, looks and stops, and the old one is even removed."""
    old = tmp_path / "supervisor-old"
    changed_copy(server.entry.parent, old, {})
    new, server.entry = server.entry, old / "run_control.py"
    ending, running = server.start("while [ ! -e go ]; do sleep 0.01; done; exit 6"), server.start("exec sleep 60")
    server.entry = new
    shutil.rmtree(old)
    assert server.status(running)["state"] == "running"
    assert server.stop(running)["state"] == "killed"
    (server.project / "go").touch()
    assert server.wait(ending)[ending]["exit_code"] == 6


@pytest.mark.row(34)
def test_an_update_leaves_jobs_alone_that_wait(server: PretendServer, tmp_path: Path) -> None:
    """What is used only after the wait was loaded before it."""
    old = tmp_path / "supervisor-old"
    changed_copy(server.entry.parent, old, {})
    server.entry = old / "run_control.py"
    running = server.start("while [ ! -e go ]; do sleep 0.01; done")
    waiting = server.new_job("test -t 1 && exit 6", terminal="command", after=[running])
    assert server.call("start", jobs=[waiting])["jobs"][0]["state"] == "queued"
    shutil.rmtree(old)
    (server.project / "go").touch()
    assert server.wait(waiting["id"])[waiting["id"]]["exit_code"] == 6


@pytest.mark.row(34)
def test_jobs_of_the_first_version_are_listed_followed_and_stopped(server: PretendServer) -> None:
    """Its records had fewer fields; what was added since has to do without."""
    ended, running = server.start("echo old; exit 5"), server.start("echo old; exec sleep 60")
    server.wait(ended)
    server.wait_for_output(running, "old")
    for path, new in (
        (server.jobs / running / "spec.json", ["log_limit"]),
        (server.jobs / ended / "spec.json", ["log_limit"]),
        (server.jobs / ended / "ended.json", ["stopped_with_launch", "lost_node", "taken_port", "trained_alone"]),
    ):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({name: value for name, value in record.items() if name not in new}))
    assert (server.status(ended)["state"], server.status(running)["state"]) == ("failed", "running")
    with server.open("follow", jobs=[{"id": ended, "offsets": {}}]) as call:
        assert [frame.body for frame in call.rest() if frame.body] == [b"old\n"]
    assert server.stop(running)["state"] == "killed"


@pytest.mark.row(34, 130)
def test_a_job_of_a_newer_version_is_not_touched_and_the_hint_names_the_remedy(server: PretendServer) -> None:
    job_id = server.start("exec sleep 60")
    spec = server.jobs / job_id / "spec.json"
    of_ours = spec.read_text()
    newer = json.dumps({**json.loads(of_ours), "schema": 2})
    spec.write_text(newer)
    before = sorted(path.name for path in spec.parent.iterdir())
    told = [server.call("status", ids=[job_id])["bad"][0]["why"], server.stop(job_id)["error"]]
    with server.open("follow", jobs=[{"id": job_id, "offsets": {}}]) as call:
        told += [frame.header["error"] for frame in call.rest() if "error" in frame.header]
    assert told == ["spec.json: schema must be 1, found 2; a newer remote-tool wrote it, so update this one"] * 3
    assert server.members(job_id) != []
    assert spec.read_text() == newer
    assert sorted(path.name for path in spec.parent.iterdir()) == before
    spec.write_text(of_ours)
    assert server.stop(job_id)["state"] == "killed"


def test_the_program_needs_nothing_but_the_standard_library(installed: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import remote_tool.agent.control; "
        "print([n for n in sys.modules if n.split('.')[0] not in sys.stdlib_module_names | {'remote_tool'}])"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(installed)], capture_output=True, check=True, text=True
    )
    assert json.loads(ended.stdout.replace("'", '"')) == ["__main__"] or ended.stdout.strip() == "[]"


@pytest.mark.row(33)
def test_a_server_with_python_3_8_starts_follows_stops_and_runs(oldest: PretendServer) -> None:
    """The floor."""
    running, ended = oldest.start("echo hello; sleep 600 & exec sleep 600"), oldest.start("exit 3")
    oldest.wait_for_output(running, "hello")
    with oldest.open("follow", jobs=[{"id": ended, "offsets": {}}], wait=True) as call:
        frames = call.rest()
    assert frames[-2].header["status"]["ended"]["exit_code"] == 3
    assert oldest.status(running)["state"] == "running"
    assert oldest.stop(running)["state"] == "killed"
    assert oldest.members(running) == []
    lost = oldest.start("exec sleep 600")
    os.kill(oldest.supervisor(lost), 9)
    wait_until(lambda: oldest.status(lost)["state"] == "lost")
    assert oldest.stop(lost)["state"] == "killed"
    with oldest.open("run", command="exit 4", environment={}) as call:
        assert call.process.wait(PATIENCE) == 4
    assert oldest.call("facts", launch=True)["addresses"]
    with oldest.open("listen", port=0, secret="abc") as listening:
        frame = listening.next()
        assert frame is not None
        answer = oldest.call(
            "connect", candidates=["127.0.0.1"], ports=[frame.header["port"]], secret="abc", timeout=20
        )
    assert answer["results"][0]["ok"]
