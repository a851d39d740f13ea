"""run: exact bytes, the exit status, and nothing left behind."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.errors import RemoteCommandError, SomeServersFailedError, UsageError
from remote_tool.transport import pool
from remote_tool.transport.host import Stream
from remote_tool.workflows.events import Notice
from remote_tool.workflows.jobs import run
from remote_tool.workspace import Hooks, Workspace
from tests.extended.workflows.jobs.test_jobs import until
from tests.processes import is_running
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.workflows.events import Event
    from tests.conftest import MakeServer


Output = dict[tuple[str, Stream], bytes]


def collect(workspace: Workspace, command: str, **options: object) -> tuple[dict[str, int], Output]:
    output: Output = {}

    def take(server: str, stream: Stream, data: bytes) -> None:
        output[server, stream] = output.get((server, stream), b"") + data

    results = workspace.run(command, on_output=take, check=False, **options)  # type: ignore[arg-type]
    results.raise_if_any_failed()
    return dict(results.values), output


def test_both_outputs_come_apart_and_the_status_is_passed_on(workspace: Workspace) -> None:
    statuses, output = collect(workspace, "printf 'a\\0\\377'; echo e >&2; exit 7")
    assert statuses == {"first": 7, "second": 7}
    for server in ("first", "second"):
        assert output[server, Stream.OUT] == b"a\0\xff"
        assert output[server, Stream.ERR] == b"e\n"


def test_without_a_taker_the_results_have_what_each_server_printed(workspace: Workspace) -> None:
    command = "printf 'a\\n\\377' && echo $REMOTE_TOOL_SERVER-$A >&2; exit 7"
    results = workspace.run(command, env={"A": "b"}, check=False)
    assert results.values == {"first": 7, "second": 7}
    for server, result in results.values.items():
        assert (result.stdout, result.stderr, result.exit_code) == ("a\n\ufffd", f"{server}-b\n", 7)
        assert (f"{result}", json.dumps(result), pickle.loads(pickle.dumps(result)).stdout) == ("7", "7", "a\n\ufffd")
    heard: list[bytes] = []
    taken = workspace.run("echo x", ["first"], on_output=lambda *what: heard.append(what[2]), check=False)
    assert (heard, taken.values["first"].stdout) == ([b"x\n"], "")


def test_a_signal_becomes_128_and_its_number(workspace: Workspace) -> None:
    assert collect(workspace, "kill -KILL $$", servers=["first"])[0] == {"first": 137}


@pytest.mark.parametrize("command", ["exit 3", "exit 255", "exit 1"])
def test_a_status_other_than_zero_raises_and_is_in_the_error(workspace: Workspace, command: str) -> None:
    status = int(command.split()[1])
    with pytest.raises(RemoteCommandError, match=f"^first: the command ended with exit code {status}$") as failed:
        workspace.run(command, ["first"])
    assert (failed.value.exit_status, failed.value.command, failed.value.server) == (status, command, "first")
    assert workspace.run(command, ["first"], check=False).values == {"first": status}


def test_of_two_servers_the_one_whose_command_failed_is_named(workspace: Workspace) -> None:
    with pytest.raises(SomeServersFailedError) as failed:
        workspace.run('[ "$REMOTE_TOOL_SERVER" = first ] || exit 3')
    assert (list(failed.value.failures), failed.value.succeeded) == (["second"], ["first"])


@pytest.mark.row(56)
def test_a_command_of_a_megabyte_runs(workspace: Workspace) -> None:
    word = "x" * 1_000_000
    _, output = collect(workspace, f"echo {word} | wc -c", servers=["first"])
    assert output["first", Stream.OUT].strip() == b"1000001"


@pytest.mark.row(57)
def test_variables_do_not_depend_on_what_sshd_accepts(workspace: Workspace) -> None:
    _, output = collect(workspace, 'echo "$A"', servers=["first"], env={"A": 'it\'s $(x) "y"\n!'})
    assert output["first", Stream.OUT] == b'it\'s $(x) "y"\n!\n'


@pytest.mark.row(52)
def test_output_of_bashrc_is_not_mistaken_for_the_commands_output(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("noisy")
    workspace = Workspace.find(make_project(tmp_path / "project", [server]))
    workspace.prepare()
    (server.home / ".bashrc").write_text("echo welcome; echo to the server >&2; printf 'no newline'\n")
    assert collect(workspace, "echo hello") == ({"noisy": 0}, {("noisy", Stream.OUT): b"hello\n"})


@pytest.mark.parametrize("servers", ["first", [1], None])
def test_servers_that_are_not_a_list_of_names_are_refused(tmp_path: Path, servers: Any) -> None:
    workspace = Workspace.find(make_project(tmp_path / "here", []))
    methods: list[Callable[[], object]] = [
        lambda: workspace.run("true", servers),
        lambda: workspace.prepare(servers),
        lambda: workspace.check(servers),
        lambda: workspace.find_orphans(servers),
        lambda: workspace.measure_bandwidth(servers),
        lambda: workspace.launch_torch("train.py", servers=servers),
    ]
    for method in methods:
        with pytest.raises(UsageError, match="servers must be a list of names"):
            method()


@pytest.mark.row(169)
@pytest.mark.parametrize("command", ["run", "rsync", "prepare"])
def test_a_login_that_takes_long_is_told_of(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(pool, "SILENT_SECONDS", 0.1)
    server = make_server("first")
    project = make_project(tmp_path / "here", [server])
    Workspace.find(project).prepare()
    notices: list[str] = []
    told = threading.Event()

    def hear(event: Event) -> None:
        if isinstance(event, Notice):
            notices.append(event.text)
            told.set()

    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        try:
            desk = Workspace.find(project, hooks=Hooks(hear))
            words = ["true"] if command == "run" else []
            running: Future[Any] = threads.submit(getattr(desk, command), *words)
            assert told.wait(60)
        finally:
            server.process.send_signal(signal.SIGCONT)
        running.result(60).raise_if_any_failed()
    assert notices[0].startswith("no answer for ")


def test_an_empty_command_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError):
        workspace.run("  ")


@pytest.mark.row(61)
def test_ctrl_c_ends_the_remote_command(workspace: Workspace, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = subprocess.Popen(
        [sys.executable, "-m", "remote_tool", "run", "--server", "first", "--cmd", f"echo $$ > {mark}; sleep 1000"],
        cwd=workspace.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(lambda: mark.exists() and mark.read_text().strip())
    pid = int(mark.read_text())
    program.send_signal(2)
    _, stderr = program.communicate(timeout=300)
    assert program.returncode == 130
    assert b"Traceback" not in stderr
    until(lambda: not is_running(pid))


@pytest.mark.slow
def test_a_command_without_standard_error_may_take_longer_than_its_start(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    (server.home / ".bashrc").write_text("exec 2>&1\n")
    joined = Workspace.find(make_project(tmp_path / "project", [server]))
    joined.prepare()
    monkeypatch.setattr(run, "BEGIN_SECONDS", 20.0)
    assert joined.run("sleep 25; echo done").values["first"].stdout == "done\n"
