"""How the program leaves: Ctrl-C, SIGTERM, a reader that went away, a lost link, a bug."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.cli.app import explain
from tests.below import files_below
from tests.extended.workflows.jobs.test_jobs import until
from tests.processes import processes_of
from tests.program import remote_tool
from tests.project import kill, make_project, start, write_configuration
from tests.sshd import TestServer
from tests.terminal import Terminal

if TYPE_CHECKING:
    from tests.conftest import MakeServer

# Each runs the program several times.
pytestmark = pytest.mark.slow

PROGRAM = (sys.executable, "-m", "remote_tool")
# Of a machine that stands still for a while; whoever waits for a server waits longer than this.
ROOM = 10.0


@pytest.fixture
def marker() -> str:
    """A word by which a test finds the processes of its own command."""
    return f"marker-{os.urandom(8).hex()}"


def open_program(*arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def commands_with(word: str) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "args", "ww"], check=True, capture_output=True, text=True).stdout
    return [line for line in listing.splitlines() if word in line and "remote_tool" not in line]


def leaves_within(process: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes]:
    """Wait as long as was promised, and a little: other tests run at the same time."""
    began = time.monotonic()
    out, err = process.communicate(timeout=300)
    assert time.monotonic() - began < seconds + ROOM
    return out, err


@pytest.mark.row(61)
@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 130, b"interrupted\n"), (signal.SIGTERM, 143, b"")]
)
def test_an_interrupted_run_leaves_at_once_and_takes_its_command_along(
    project: Path, marker: str, number: signal.Signals, status: int, said: bytes
) -> None:
    process = open_program("run", "--server", "first", "--cmd", f"echo up; sleep 1000; : {marker}", cwd=project)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    out, err = leaves_within(process, 1)
    assert (process.returncode, out, err) == (status, b"", said)
    while commands_with(marker):
        time.sleep(0.02)


@pytest.mark.row(61)
def test_ctrl_c_at_a_tail_leaves_the_job_alone_and_says_how_to_come_back(project: Path) -> None:
    job = start(project, "echo up; sleep 1000")
    process = open_program("job-tail", "--job", job.id, cwd=project)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    out, err = leaves_within(process, 1)
    again = f"still running; to follow again: remote-tool job-tail {job.key}"
    assert (process.returncode, out, err.decode().strip()) == (130, b"", again)
    assert len(processes_of(job.id)) >= 1
    kill(project, job)


def is_sending(server: TestServer) -> bool:
    """Whether some of a large file has come."""
    for file in files_below(server.home):
        with suppress(FileNotFoundError):
            if "large.bin." in file.name and file.stat().st_size > 1_000_000:
                return True
    return False


@pytest.mark.row(61, 170)
@pytest.mark.parametrize("command", ["rsync", "prepare", "job-run"])
def test_ctrl_c_in_the_middle_of_a_sync_says_what_is_left_and_the_next_one_resumes(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    server = make_server("first")
    root = make_project(tmp_path / "project", [server])
    # A file of the second in which a sync was interrupted is sent once more.
    for file in filter(Path.is_file, root.rglob("*")):
        os.utime(file, (0, 0))
    assert remote_tool("prepare", cwd=root).returncode == 0
    (root / "large.bin").write_bytes(os.urandom(8_000_000))
    slow = tmp_path / "slow" / "rsync"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nexec {shutil.which("rsync")} --bwlimit=1m "$@"\n')
    slow.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
        words = ("job-run", "--", "true") if command == "job-run" else (command,)
        process = open_program(*words, cwd=root)
        until(lambda: is_sending(server))
        process.send_signal(signal.SIGINT)
        _, err = leaves_within(process, 1)
    left = "to see what was started: remote-tool job-list" if command == "job-run" else "run it again to resume"
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == f"interrupted; {left}"
    assert not any(word in err for word in (b"Cancelled", b"Traceback", b"failed"))
    again = remote_tool("rsync", cwd=root)
    assert again.returncode == 0, again.stderr
    # Of what had come, nothing was sent again.
    assert "sent 1 file" in again.stderr
    assert "(7.6 MiB)" not in again.stderr


@pytest.mark.row(61, 170)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--", "true"), "interrupted"),
        (("rsync",), "interrupted; run it again to resume"),
        (("prepare",), "interrupted; run it again to resume"),
        (("data-sync",), "interrupted; run it again to resume"),
        (("helper-launch", "--cmd", "true"), "interrupted; to see what was started: remote-tool job-list"),
        (("job-list",), "interrupted"),
        (("job-wait",), "interrupted; the jobs keep running"),
        (("job-kill", "--server", "first"), "interrupted; to see what is still running: remote-tool job-list"),
        (("check",), "interrupted"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_ctrl_c_while_a_server_does_not_answer_is_one_line(
    tmp_path: Path, ssh_key: Path, words: tuple[str, ...], said: str
) -> None:
    """The port takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = TestServer("first", tmp_path / "server", ssh_key, port=silent.getsockname()[1])
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "file").touch()
        data = {"set": {"from": str(tmp_path / "set"), "to": "~/set"}}
        root = make_project(tmp_path / "project", [server], data=data)
        process = open_program(*words, cwd=root)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            out, err = leaves_within(process, 1)
    assert (process.returncode, out, err.decode()) == (130, b"", f"{said}\n")


@pytest.mark.row(61, 170)
def test_ctrl_c_at_any_moment_of_a_short_command_shows_no_traceback(project: Path) -> None:
    """From its first line on, while it loads, connects, works and ends."""
    for step in range(30):
        process = open_program("rsync", cwd=project)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05 * step)
        process.send_signal(signal.SIGINT)
        _, err = leaves_within(process, 1)
        # Python's own start and the package's, until the first lines have run, may have a traceback.
        named = err.replace(b"/remote_tool/__init__.py", b"").replace(b"/remote_tool/__main__.py", b"")
        is_ours = b"/remote_tool/" in named or b"Traceback" not in err
        assert process.returncode in {0, 130, -signal.SIGINT} or not is_ours, err
        assert not is_ours or not any(word in err for word in (b"Cancelled", b"Traceback", b"failed")), err


# Sends a signal after the N-th time that an import has taken the lock of all imports, at once: nothing here is Python.
INTERRUPTED_IMPORT = '''
import _imp, operator, signal, sys, threading
from collections import deque
from functools import partial
from remote_tool.cli import app

number, times = int(sys.argv.pop(1)), int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as at the start of the program
set_timer = signal.setitimer


def at_once(which, _seconds):
    """The first time, the alarm meets the handler that has set it, as on a busy machine."""
    signal.setitimer = set_timer
    set_timer(which, 1e-6)
    operator.index(0)  # after a call Python looks for signals


signal.setitimer = at_once
take = _imp.acquire_lock
last = [take, partial(setattr, _imp, "acquire_lock", take), partial(signal.raise_signal, number)]
steps = map(operator.call, [take] * (times - 1) + [partial(deque, map(operator.call, last), 0)])
_imp.acquire_lock = partial(next, steps)
try:
    app.main()
except SystemExit as ended:
    threads = [threading.Thread(target=__import__, args=("wave",), daemon=True)]
    threads[0].start()
    threads[0].join(60)
    print(ended.code, threads[0].is_alive())
'''


@pytest.mark.row(61, 170)
@pytest.mark.parametrize("times", [1, 3, 6, 8])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_module_is_loaded_is_not_lost_and_locks_nothing(
    tmp_path: Path, ssh_key: Path, times: int, number: signal.Signals, status: int
) -> None:
    """The lock of all imports is taken to look for a module, and in the callbacks of weak references."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = TestServer("first", tmp_path / "server", ssh_key, port=silent.getsockname()[1])
        root = make_project(tmp_path / "project", [server])
        ended = subprocess.run(
            [sys.executable, "-c", INTERRUPTED_IMPORT, str(int(number)), str(times), "run", "--", "true"],
            cwd=root,
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ended.stdout == f"{status} False\n", ended.stderr
    assert "Exception" not in ended.stderr


@pytest.mark.row(61, 170)
def test_ctrl_c_while_python_waits_for_threads_at_the_end_shows_no_traceback() -> None:
    """A thread that is still at work sends it, as soon as it is waited for."""
    code = (
        "import os, signal, sys, threading, time\n"
        "from remote_tool.cli import app\n"
        "main = threading.main_thread().ident\n"
        "def interrupt():\n"
        "    while sys._current_frames()[main].f_code.co_name != '_shutdown': time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "threading.Thread(target=interrupt).start()\n"
        "sys.argv[1:] = ['--version']\n"
        "app.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


@pytest.mark.row(61)
@pytest.mark.parametrize("arguments", [("run", "--cmd", "yes"), ("run", "--server", "first", "--cmd", "yes")])
def test_a_reader_that_goes_away_ends_the_program_silently(project: Path, arguments: tuple[str, ...]) -> None:
    process = open_program(*arguments, cwd=project)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"y\n")
    process.stdout.close()
    process.stdout = None
    _, err = leaves_within(process, 1)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.row(61)
def test_a_tail_without_reader_leaves_the_job_alone(project: Path) -> None:
    job = start(project, "while sleep 0.05; do echo line; done")
    process = open_program("job-tail", "--job", job.id, cwd=project)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = leaves_within(process, 1)
    assert (process.returncode, err) == (141, b"")
    assert len(processes_of(job.id)) >= 1
    kill(project, job)


@pytest.mark.row(61)
def test_a_reader_of_stderr_that_goes_away_hangs_nothing(project: Path, servers: tuple[TestServer, TestServer]) -> None:
    go, start_up = servers[0].home / "go", servers[0].home / ".bashrc"
    # Else all may have been said before the reader is gone.
    start_up.write_text(f"until [ -e '{go}' ]; do sleep 0.05; done\n")
    try:
        process = open_program("prepare", "-v", cwd=project)
        assert process.stderr is not None
        process.stderr.readline()
        process.stderr.close()
        process.stderr = None
        go.touch()
        out, _ = leaves_within(process, 10)
    finally:
        start_up.unlink()
        go.unlink(missing_ok=True)
    assert (process.returncode, out) == (141, b"")


@pytest.mark.row(36)
def test_a_lost_link_ends_a_run_with_an_error_and_no_traceback(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("gpu1")
    root = tmp_path / "project"
    root.mkdir()
    write_configuration(root, [server])
    Workspace.find(root).prepare()
    process = open_program("run", "--cmd", "echo up; sleep 1000", cwd=root)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    server.drop_connections()
    _, err = leaves_within(process, 10)
    assert process.returncode == 4
    assert err.startswith(b"error: gpu1: the connection was lost")
    assert b"Traceback" not in err


@pytest.fixture
def locked(servers: tuple[TestServer, TestServer], tmp_path: Path) -> Path:
    """A project whose only server is logged in to by a key with the passphrase "secret"."""
    locked = tmp_path / "locked"
    shutil.copy(servers[0].key, locked)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(locked)], check=True)
    root = tmp_path / "project"
    root.mkdir()
    write_configuration(root, [servers[0]])
    file = root / ".remote" / "configs.yaml"
    file.write_text(file.read_text().replace(str(servers[0].key), str(locked)))
    return root


def until_asked(terminal: Terminal, times: int = 1) -> None:
    """Wait for the passphrase's prompt, and see that nothing is drawn over it."""
    terminal.until("locked: ", times=times)
    while termios.tcgetattr(terminal.theirs)[3] & termios.ECHO:
        time.sleep(0.01)
    assert shows_cursor(terminal)


def shows_cursor(terminal: Terminal) -> bool:
    return terminal.raw.rfind(b"\x1b[?25h") >= terminal.raw.rfind(b"\x1b[?25l")


def test_ctrl_c_while_a_password_is_asked_for_gives_the_terminal_back(locked: Path) -> None:
    with Terminal("job-list", cwd=locked) as terminal:
        until_asked(terminal)
        terminal.type("\x03")
        assert terminal.end() == 130
        assert termios.tcgetattr(terminal.theirs)[3] & termios.ECHO
        assert "Traceback" not in terminal.text


@pytest.mark.usefixtures("project")
def test_a_password_that_is_asked_for_again_leaves_nothing_on_the_terminal(locked: Path) -> None:
    """To start, to follow, and to bring the artifact home."""
    words = ("--follow", "--no-sync", "--artifact", "made.txt", "--cmd", "echo done > made.txt")
    with Terminal("job-run", *words, cwd=locked) as terminal:
        for times in (1, 2, 3):
            until_asked(terminal, times)
            terminal.type("secret\n")
        assert terminal.end() == 0, terminal.text
        assert shows_cursor(terminal)
    with Terminal("job-tail", cwd=locked) as terminal:
        until_asked(terminal)
        terminal.type("\x03")
        assert terminal.end() == 130
        assert termios.tcgetattr(terminal.theirs)[3] & termios.ECHO


@pytest.mark.row(124)
def test_a_disk_that_cannot_be_written_is_named_without_a_traceback(project: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        printed = subprocess.run(
            [*PROGRAM, "run", "--server", "first", "--cmd", "echo x"],
            cwd=project,
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert (printed.returncode, printed.stderr) == (
        1,
        b"error: Cannot write: No space left on device\nhint: df -h .\n",
    )


CLOSED = b"error: Cannot write: standard output is closed\nhint: To discard the output: >/dev/null\n"


def run_with_closed(streams: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the program as a shell does that closes some of its standard streams."""
    closing = {"0": "<&-", "1": ">&-", "2": "2>&-"}
    command = f'exec "$@" {" ".join(closing[each] for each in streams)}'
    return subprocess.run(["sh", "-c", command, "sh", *PROGRAM, *arguments], cwd=cwd, check=False, capture_output=True)


@pytest.mark.row(140)
@pytest.mark.parametrize("streams", ["0", "1", "2", "012"])
@pytest.mark.parametrize("arguments", [("run", "--cmd", "echo x"), ("job-list", "--stopped"), ("--version",)])
def test_closed_standard_streams_are_no_bug(project: Path, streams: str, arguments: tuple[str, ...]) -> None:
    """Output that cannot be written is an error, as on a full disk; nothing else is."""
    kill(project, start(project, "true"))
    words = arguments if arguments == ("--version",) else (*arguments, "--server", "first")
    ended = run_with_closed(streams, *words, cwd=project)
    assert b"Traceback" not in ended.stderr
    assert ended.returncode == (1 if "1" in streams else 0), ended.stderr
    assert ended.stderr == (CLOSED if streams == "1" else b"")
    assert bool(ended.stdout) == ("1" not in streams)


@pytest.mark.row(140)
def test_a_command_that_prints_nothing_needs_no_standard_streams(project: Path) -> None:
    assert run_with_closed("012", "rsync", "--server", "first", cwd=project).returncode == 0


@pytest.mark.row(140)
@pytest.mark.parametrize("streams", ["0", "1", "2", "012"])
def test_no_file_of_ours_becomes_a_closed_standard_stream(tmp_path: Path, streams: str) -> None:
    """Else what is printed, or what a program prints that we start, would be written into it."""
    code = (
        "import os, sys; sys.argv = ['remote-tool', '--version']; sys.exit = lambda status: None\n"
        "from remote_tool.cli.app import main\n"
        "main()\n"
        f"names = [os.readlink(f'/proc/self/fd/{{each}}') for each in {[int(each) for each in streams]}]\n"
        "with open('names', 'w') as file: file.write(f'{file.fileno() > 2} {set(names)}')\n"
    )
    closing = " ".join({"0": "<&-", "1": ">&-", "2": "2>&-"}[each] for each in streams)
    subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closing}', sys.executable, code], cwd=tmp_path, check=False, timeout=30
    )
    assert (tmp_path / "names").read_text() == "True {'/dev/null'}"


@pytest.mark.slow
@pytest.mark.row(140)
@pytest.mark.parametrize("command", [("run", "--cmd", "true"), ("job-list",), ("rsync",), ("check",)])
def test_too_many_open_files_are_reported_with_the_command_that_helps(project: Path, command: tuple[str, ...]) -> None:
    """Wherever the last one was needed."""
    refused = 0
    for limit in range(7, 28, 2):
        ended = subprocess.run(
            ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *PROGRAM, *command],
            cwd=project,
            check=False,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in ended.stderr, (limit, ended.stderr)
        if ended.returncode:
            refused += 1
            assert "ulimit -n 8192" in ended.stdout + ended.stderr, (limit, ended.stdout, ended.stderr)
            assert "df -h" not in ended.stderr
    assert refused


@pytest.mark.row(124)
@pytest.mark.parametrize(
    ("number", "path", "told"),
    [
        (errno.EROFS, "a", ("Cannot write a: Read-only file system", "df -h .")),
        (errno.EDQUOT, b"a", ("Cannot write a: Disk quota exceeded", "df -h .")),
        (errno.EACCES, "a", ("Cannot use a: Permission denied", "ls -ld a")),
        (errno.EMFILE, None, ("Too many files are open for this number of servers", "ulimit -n 8192")),
        (errno.EPERM, None, None),
        (errno.EBADF, "a", None),
    ],
)
def test_errors_of_this_machine_are_distinguished_from_bugs(
    number: int, path: str | bytes | None, told: tuple[str, str] | None
) -> None:
    error = explain(OSError(number, os.strerror(number), path))
    assert (error and (error.message, error.hint)) == told


@pytest.mark.row(140)
def test_an_extension_module_that_needs_one_file_too_many_is_told_apart_from_a_broken_installation() -> None:
    error = explain(ImportError(f"_ctypes.so: cannot open shared object file: {os.strerror(errno.EMFILE)}"))
    assert error
    assert error.hint == "ulimit -n 8192"
    assert explain(ImportError("_ctypes.so: undefined symbol")) is None


def test_a_removed_folder_is_reported(tmp_path: Path) -> None:
    code = "import os, remote_tool.cli.app as app; os.rmdir(os.getcwd()); app.main()"
    for command in ("init", "job-list"):
        gone = tmp_path / command
        gone.mkdir()
        process = subprocess.run(
            [sys.executable, "-c", code, command], cwd=gone, check=False, capture_output=True, text=True
        )
        told = "error: The current folder has been removed\nhint: cd ..\n"
        assert (process.returncode, process.stderr) == (2, told)


def test_a_bug_keeps_its_traceback(tmp_path: Path) -> None:
    broken = "import remote_tool.cli.output.streams as s, remote_tool.cli.app as a; del s.write_text; a.main()"
    process = subprocess.run(
        [sys.executable, "-c", broken, "job-list"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert process.returncode == 1
    assert process.stderr.startswith("Traceback (most recent call last):")
    assert "AttributeError" in process.stderr


@pytest.mark.row(140)
def test_a_temporary_file_that_cannot_be_created_is_reported_with_its_likely_causes() -> None:
    """The module tempfile hides the cause."""
    code = (
        "import os, resource, sys, tempfile\n"
        "from remote_tool.cli.app import explain\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 1,) * 2)\n"
        "try: tempfile.gettempdir()\n"
        "except OSError as problem: found = explain(problem)\n"
        "print(found.message, found.hint)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "too many files are open, or the disk is full" in ended.stdout
    assert "ulimit -n 8192" in ended.stdout
