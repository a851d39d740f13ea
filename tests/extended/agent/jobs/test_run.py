from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.proc.processes import ProcessSnapshot
from remote_tool.agent.supervisor.shell import SCRIPT_DESCRIPTOR, loading_words
from tests.extended.agent.conftest import PATIENCE, Call, PretendServer, wait_until
from tests.processes import read_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def read_to_end(call: Call) -> tuple[bytes, bytes]:
    """Return what came after the mark on stdout and on stderr."""
    assert call.process.stderr is not None
    found: dict[int, bool] = {}
    streams = {call.stdout.fileno(): b"", call.process.stderr.fileno(): b""}
    while len(found) < 2:
        ready = select.select(streams.keys() - found.keys(), [], [], PATIENCE)[0]
        assert ready, f"no end in {PATIENCE} s"
        for stream in ready:
            data = os.read(stream, 65536)
            streams[stream] += data
            if not data:
                found[stream] = True
    mark = f"\0{call.nonce} run\n".encode()
    out, err = streams.values()
    assert out.startswith(mark)
    assert err.startswith(mark)
    return out[len(mark) :], err[len(mark) :]


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Path]:
    """A file where a command writes its job id; whatever carries it at the end is killed."""
    path = tmp_path / "id"
    yield path
    if path.exists():
        for process in ProcessSnapshot().members(path.read_text().strip(), ""):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def members(marked: Path) -> list[int]:
    """Look for living processes of the command that wrote its id there."""
    return [process.pid for process in ProcessSnapshot().members(marked.read_text().strip(), "")]


@pytest.mark.row(6)
@pytest.mark.parametrize("code", [0, 1, 126, 137, 255])
def test_it_exits_as_the_command_does_with_its_bytes_on_both_streams(server: PretendServer, code: int) -> None:
    command = f"printf 'a\\0b\\377'; printf 'mistake' >&2; pwd >&2; exit {code}"
    with server.open("run", command=command, environment={}) as call:
        assert read_to_end(call) == (b"a\0b\xff", f"mistake{server.project}\n".encode())
        assert call.process.wait(PATIENCE) == code


def test_a_signal_is_128_and_its_number(server: PretendServer) -> None:
    with server.open("run", command="kill -SEGV $$; sleep 60", environment={}) as call:
        read_to_end(call)
        assert call.process.wait(PATIENCE) == 128 + signal.SIGSEGV


def test_the_command_has_an_activated_environment_and_an_empty_stdin(server: PretendServer) -> None:
    server.activate(variables={"CONDA_PREFIX": "/prefix"})
    command = 'echo "$CONDA_PREFIX $LR $RANK $REMOTE_TOOL_SERVER"; cat; ls -l /proc/self/fd | wc -l'
    with server.open("run", command=command, environment={"LR": "0.1"}, server="first", login={"RANK": "3"}) as call:
        out, _ = read_to_end(call)
    # Three descriptors, the one for the listing, and the total: none of ours.
    assert out == b"/prefix 0.1  first\n5\n"


@pytest.mark.row(171)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo hi; )", b"command: eval: line 1: syntax error near"),
        ("true\nnosuch", b"command: line 2: nosuch: command"),
    ],
)
def test_a_syntax_error_in_the_command_names_its_line_and_no_descriptor(
    server: PretendServer, command: str, message: bytes
) -> None:
    (server.home / ".bashrc").write_text("echo bashrc\n")
    with server.open("run", command=command, environment={}, login={"SSH_CLIENT": "1 2 3"}) as call:
        out, err = read_to_end(call)
    assert (out, err.splitlines()[0][: len(message)]) == (b"", message)
    assert b"/fd/" not in err


@pytest.mark.parametrize("shell", [b"/bin/bash", b"/bin/sh"])
@pytest.mark.parametrize(
    ("script", "status", "out"),
    [
        (b"cat <<E\n'$#' \x01\x7f\xff\nE\n", 0, b"'0' \x01\x7f\xff\n"),
        (b"echo a\nset -e\nfalse\necho b\n", 1, b"a\n"),
        (b"echo a\nif\n", 2, b"a\n"),
        (b"trap 'echo end' EXIT; exec 3>&1; [ -e /proc/self/fd/9 ] || exit 7\n", 7, b"end\n"),
    ],
)
def test_a_shell_runs_what_it_reads_of_the_descriptor(shell: bytes, script: bytes, status: int, out: bytes) -> None:
    def give() -> None:
        reading, writing = os.pipe()
        os.write(writing, script)
        os.close(writing)
        os.dup2(reading, SCRIPT_DESCRIPTOR)

    words = loading_words(shell)
    ran = subprocess.run(words, executable=shell, preexec_fn=give, close_fds=False, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (status, out)


@pytest.mark.row(55, 111)
@pytest.mark.row(55)
def test_a_long_command_with_a_secret_is_seen_by_nobody(server: PretendServer) -> None:
    """Neither in arguments nor in a file that stays."""
    command = f"echo start; sleep 60; : canary-7391 {'x' * 300_000}"
    with server.open("run", command=command, environment={}) as call:
        wait_until(lambda: b"start" in os.read(call.stdout.fileno(), 4096))
        for process in ProcessSnapshot().processes.values():
            assert process.pid == os.getpid() or b"canary-7391" not in read_of(process.pid, "cmdline")
        assert not [path for path in server.scripts.iterdir() if path.name.startswith(".run")]


@pytest.mark.row(1, 16)
@pytest.mark.parametrize("way", ["eof", "SIGTERM", "SIGHUP"])
def test_the_whole_tree_ends_with_its_client(server: PretendServer, marked: Path, way: str) -> None:
    command = f"echo $REMOTE_TOOL_JOB_ID > '{marked}'; setsid sleep 600 & env -i sleep 600 & echo ready; sleep 600"
    with server.open("run", command=command, environment={}) as call:
        wait_until(lambda: b"ready" in os.read(call.stdout.fileno(), 4096))
        wait_until(lambda: len(members(marked)) >= 3)
        if way == "eof":
            call.stdin.close()
        else:
            call.process.send_signal(signal.Signals[way])
        assert call.process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert members(marked) == []


@pytest.mark.row(23)
def test_a_handler_has_time_to_save_when_the_client_goes(server: PretendServer) -> None:
    command = "trap 'sleep 0.3; echo saved > checkpoint; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    with server.open("run", command=command, environment={}) as call:
        wait_until(lambda: b"ready" in os.read(call.stdout.fileno(), 4096))
        assert call.close() == 0
    assert (server.project / "checkpoint").read_text() == "saved\n"


def test_a_background_process_does_not_hold_the_answer(server: PretendServer, marked: Path) -> None:
    """Fact M9: it would for as long as it lives; it is ended with the command."""
    command = f"echo $REMOTE_TOOL_JOB_ID > '{marked}'; sleep 600 & echo done"
    with server.open("run", command=command, environment={}) as call:
        assert read_to_end(call) == (b"done\n", b"")
        assert call.process.wait(PATIENCE) == 0
    assert members(marked) == []


@pytest.mark.row(17)
@pytest.mark.slow
def test_a_deaf_tree_is_killed_after_a_grace(server: PretendServer, marked: Path) -> None:
    command = f"echo $REMOTE_TOOL_JOB_ID > '{marked}'; trap '' TERM; echo ready; while :; do sleep 0.05; done"
    with server.open("run", command=command, environment={}) as call:
        wait_until(lambda: b"ready" in os.read(call.stdout.fileno(), 4096))
        assert call.close() == 128 + signal.SIGKILL
    assert members(marked) == []


def test_errors_before_the_start_are_a_framed_answer(server: PretendServer) -> None:
    (server.scripts / "activation.json").unlink()
    with server.open("run", command="true", environment={}) as call:
        frame = call.next()
        assert frame is not None
        assert "not set up" in frame.header["error"]


def test_the_shell_reports_lines_as_they_were_written(server: PretendServer) -> None:
    with server.open("run", command="#!/bin/bash\n\nno-such-program", environment={}) as call:
        _, err = read_to_end(call)
        assert call.process.wait(PATIENCE) == 127
    assert b"line 3" in err or b" 3:" in err
