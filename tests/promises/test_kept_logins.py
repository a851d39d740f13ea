"""What lies where logins are kept is used only if it is what was left there, and only for the same server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kept_logins import keeping_logins, masters, wait_for_logins
from tests.processes import is_running
from tests.promises.conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.promises.conftest import Desk

# What a master and its clients say to each other begins with these; see PROTOCOL.mux of OpenSSH.
HELLO, NEW_SESSION, FAILURE = (1).to_bytes(4), (0x10000002).to_bytes(4), (0x80000003).to_bytes(4)

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh program here")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where logins are kept."""
    with keeping_logins(monkeypatch) as folder:
        yield folder


@pytest.fixture
def keeping(folder: Path, desk_alone: Desk) -> Desk:
    """A prepared project whose login is kept."""
    wait_for_logins(folder, 1)
    return desk_alone


def kept(folder: Path) -> Path:
    """The folder of the only login."""
    (found,) = (folder / "remote-tool").iterdir()
    return found


def runs(desk: Desk) -> None:
    """Look whether a command has its own output and exit status."""
    ran = desk.tries("run", "--cmd", "echo out-$((40 + 2)); exit 7")
    assert (ran.returncode, ran.stdout) == (7, "out-42\n"), ran.stderr
    assert "Traceback" not in ran.stderr


def logins(desk: Desk) -> int:
    """Count the logins that the server has accepted."""
    return desk.servers["first"].log().count("Accepted publickey")


def logs_in_itself(desk: Desk) -> None:
    """Look whether a command does all that without the kept login."""
    before = logins(desk)
    runs(desk)
    assert logins(desk) > before


def _other_key(desk: Desk) -> None:
    servers = desk.settings()["servers"]
    servers["first"]["private_key"] = str(shutil.copy(servers["first"]["private_key"], desk.root / "other-key"))
    desk.configure(servers=servers)


def _other_ssh_config(_: Desk) -> None:
    folder = Path.home() / ".ssh"
    folder.mkdir()
    (folder / "config").write_text("Host *\n    Compression yes\n")


def _forgotten_host_key(desk: Desk) -> None:
    (desk.root / ".remote" / "known_hosts").write_text("")


def _half_of_what_is_known_of_it(_: Desk) -> None:
    for file in kept(Path(os.environ["XDG_RUNTIME_DIR"])).glob("*.json"):
        file.write_text(file.read_text()[:100])


@pytest.mark.row(180)
@pytest.mark.parametrize("change", [_other_key, _other_ssh_config, _forgotten_host_key, _half_of_what_is_known_of_it])
def test_a_login_whose_settings_have_changed_is_not_used(keeping: Desk, change: Callable[[Desk], None]) -> None:
    before = logins(keeping)
    runs(keeping)
    assert logins(keeping) == before
    change(keeping)
    logs_in_itself(keeping)


@pytest.mark.row(197)
def test_a_server_that_has_another_key_after_a_reboot_is_refused_though_its_login_was_kept(keeping: Desk) -> None:
    server = keeping.servers["first"]
    server.stop()
    server.host_key.unlink()
    server.host_key.with_suffix(".pub").unlink()
    server.start()
    said = keeping.refuses("run", "--cmd", f"touch {keeping.root}/began")
    assert "host key" in said
    assert not (keeping.root / "began").exists()


@pytest.mark.row(195)
def test_a_followed_job_goes_on_when_the_program_that_keeps_its_login_is_killed(keeping: Desk, own_home: Path) -> None:
    command = "echo begun; until [ -e go ]; do sleep 0.05; done; echo over; exit 7"
    with keeping.runs_meanwhile("job-run", "--follow", "--cmd", command) as following, ExitStack() as stack:
        stack.callback(following.kill)
        assert following.stdout is not None
        assert any("begun" in line for line in following.stdout)
        (master,) = masters(own_home)
        os.kill(master, signal.SIGKILL)
        (keeping.there() / "go").touch()
        rest = following.stdout.read()
        assert following.wait() == 7, rest
    assert rest.count("over\n") == 1
    assert keeping.job(1)["exit_code"] == 7


@pytest.mark.row(182, 195)
def test_output_that_a_killed_master_still_had_is_a_lost_connection_though_the_command_has_ended(
    keeping: Desk, own_home: Path
) -> None:
    here, there = keeping.root, keeping.there()
    command = f"echo $$ >{here}/shell; echo begun; until [ -e go ]; do sleep 0.05; done; head -c 1500000 /dev/zero"
    with keeping.runs_meanwhile("run", "--cmd", command) as running, ExitStack() as stack:
        stack.callback(running.kill)
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        # It reads nothing more, so that most of the output stays with the master.
        os.kill(running.pid, signal.SIGSTOP)
        (there / "go").touch()
        until(lambda: not is_running(int((here / "shell").read_text())), "the command has ended")
        # When another one has, the master knows the exit status of this one, and has the rest of its output.
        keeping.does("run", "--cmd", "true")
        (master,) = masters(own_home)
        os.kill(master, signal.SIGKILL)
        until(lambda: not masters(own_home), "it has gone")
        os.kill(running.pid, signal.SIGCONT)
        rest = running.stdout.read()
        assert running.wait() != 0
    assert "connection was lost" in rest.replace("\0", "")


@pytest.mark.row(181, 196)
@pytest.mark.parametrize("answer", [b"", b"\0\0\0\4\0\0\0\0", b"\xff" * 100_000])
def test_a_program_at_the_socket_that_keeps_no_login_runs_nothing_and_answers_nothing(
    keeping: Desk, folder: Path, own_home: Path, answer: bytes
) -> None:
    with _instead_of_the_master(folder, own_home, lambda caller: caller.sendall(answer)):
        logs_in_itself(keeping)


@pytest.mark.row(196)
def test_a_master_whose_greeting_says_more_is_asked_and_if_it_refuses_nothing_is_lost(
    keeping: Desk, folder: Path, own_home: Path
) -> None:
    asked: list[bytes] = []
    greeting, refusal = HELLO + (4).to_bytes(4) + b"\0\0\0\4info\0\0\0\x010", FAILURE + b"\0\0\0\1\0\0\0\2no"

    def refuse(caller: socket.socket) -> None:
        caller.sendall(b"".join(len(each).to_bytes(4) + each for each in (greeting, refusal)))
        with caller.makefile("rb") as said:
            asked.extend(said.read(int.from_bytes(said.read(4))) for _ in range(2))
            # The three pipes of a session follow.
            said.read(3 if asked[-1].startswith(NEW_SESSION) else 0)

    with _instead_of_the_master(folder, own_home, refuse):
        logs_in_itself(keeping)
    assert any(each.startswith(NEW_SESSION) for each in asked)


@contextmanager
def _instead_of_the_master(folder: Path, home: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Kill the program that keeps the only login, and answer everyone at its socket."""
    (place,) = kept(folder).glob("s????")
    (master,) = masters(home)
    os.kill(master, signal.SIGKILL)
    until(lambda: not masters(home), "it has gone")
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        place.chmod(0o600)
        listener.listen()
        answering = threading.Thread(target=_answer_all, args=(listener, answer))
        answering.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            answering.join()


def _answer_all(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    """Answer everyone, and hang up, until nobody listens any more."""
    with suppress(OSError):
        while True:
            caller, _ = listener.accept()
            with caller, suppress(OSError):
                answer(caller)


def _pipes(login: Path) -> None:
    for path in [path for path in login.iterdir() if path.is_file()]:
        path.unlink()
        os.mkfifo(path, 0o600)


def _fill(login: Path, data: bytes) -> None:
    for path in [path for path in login.iterdir() if path.is_file()]:
        path.write_bytes(data)


def _garbage(login: Path) -> None:
    _fill(login, b"\xff{" * 5000)


def _a_list(login: Path) -> None:
    _fill(login, b"[1]")


def _lists_in_lists(login: Path) -> None:
    _fill(login, b"[" * 100_000)


def _link(login: Path) -> None:
    login.symlink_to(login.rename(login.parent.parent / "elsewhere"))


def _open_to_all(login: Path) -> None:
    login.chmod(0o777)


def _record_open_to_all(login: Path) -> None:
    for path in login.glob("*.json"):
        path.chmod(0o666)


@pytest.mark.row(181, 193)
@pytest.mark.parametrize(
    "plant", [_pipes, _garbage, _a_list, _lists_in_lists, _link, _open_to_all, _record_open_to_all]
)
def test_what_is_not_as_a_kept_login_left_it_is_passed_over(
    keeping: Desk, folder: Path, plant: Callable[[Path], None]
) -> None:
    plant(kept(folder))
    logs_in_itself(keeping)
    assert "Traceback" not in keeping.tries("connections").stderr
