"""Real OpenSSH servers on loopback, each with a home, keys and a port of its own, run by the current user."""

from __future__ import annotations

import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import pytest

from tests.machine_gpus import put_no_gpus
from tests.processes import parents, read_of

if TYPE_CHECKING:
    from collections.abc import Iterable

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
_START_SECONDS = 300.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def free_port() -> int:
    """Find a free port by binding."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def free_low_port() -> int:
    """Find a port that the system gives to nobody who does not ask for it."""
    # Every test has the same seed, and tests that run at the same time need different ports.
    for port in random.SystemRandom().sample(range(20000, 32000), 1000):
        with socket.socket() as sock:
            try:
                sock.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def make_key(path: Path, *, passphrase: str = "") -> Path:
    """Make an ed25519 key pair."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def python_of_servers() -> str:
    """Return the version of the Python that servers have before they are prepared, such as ``3.11``."""
    said = subprocess.run(
        ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        env={"PATH": _PATH},
        check=True,
        capture_output=True,
        text=True,
    )
    return said.stdout.strip()


class Reachable(Protocol):
    """What a configuration says of a server: one on loopback, or one in namespaces of its own."""

    port: int

    @property
    def name(self) -> str:
        """What the configuration calls it."""

    @property
    def address(self) -> str:
        """Where its sshd listens."""

    @property
    def username(self) -> str:
        """Who logs in."""

    @property
    def key(self) -> Path:
        """What it accepts."""


@dataclass
class TestServer:
    """One sshd; ``home`` is the server's ``$HOME``, and ``before`` are words that its command begins with."""

    __test__ = False
    address = "127.0.0.1"

    name: str
    folder: Path
    key: Path
    options: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        """Skip the test on macOS: what runs on servers is made for Linux."""
        if sys.platform == "darwin":
            pytest.skip("the server of this test would have to run Linux")

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def username(self) -> str:
        return getpass.getuser()

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def programs(self) -> Path:
        """First on its PATH, before the programs of the machine."""
        return self.folder / "programs"

    @property
    def leases(self) -> Path:
        """In place of /var/tmp, for the leases of GPUs."""
        return self.folder / "leases"

    def configuration(self) -> dict[str, str]:
        """``NAME=value`` variables of SetEnv go on one line, a test's first: sshd takes the first line and value."""
        variables = [
            self.options.get("SetEnv", ""),
            f"HOME={self.home}",
            f"PATH={self.programs}:{_PATH}",
            f"REMOTE_TOOL_TEST_SERVER={self.name}",
            # Each is a machine of its own, with GPUs of its own.
            f"REMOTE_TOOL_TEST_LEASES={self.leases}",
            # What a test sees does not depend on the GPUs of the machine.
            "CUDA_VISIBLE_DEVICES=",
            # MPI looks at all network interfaces, and fails if a test beside it removes one meanwhile.
            "UCX_NET_DEVICES=lo",
        ]
        options = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "HostKey": str(self.host_key),
            "PidFile": "none",
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "yes",
            "PrintMotd": "no",
            "LogLevel": "VERBOSE",
        }
        return options | self.options | {"SetEnv": " ".join(variables)}

    def start(self) -> None:
        """Start sshd and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        self.leases.mkdir(exist_ok=True)
        put_no_gpus(self.programs, _PATH)
        if not self.host_key.exists():
            make_key(self.host_key)
        shutil.copy(self.key.with_name(self.key.name + ".pub"), self.folder / "authorized_keys")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # privilege separation, as Debian's service makes it
        for _ in range(5):
            # A server that is stopped and started again finds it free.
            self.port = self.port or free_low_port()
            if self._try_start():
                return
            self.port = 0
        raise RuntimeError(f"sshd did not start: {(self.folder / 'sshd.log').read_text()}")

    def _try_start(self) -> bool:
        file = self.folder / "sshd_config"
        file.write_text("".join(f"{key} {value}\n" for key, value in self.configuration().items()))
        with (self.folder / "sshd.log").open("ab") as log:
            before = log.tell()
            self.process = subprocess.Popen(
                # With -r, which newer ones ignore, a connection does not cost another start of sshd.
                [*self.before, SSHD, "-D", "-e", "-r", "-f", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        addresses = file.read_text().count("ListenAddress ")
        # Who answers at the port may be the server of another test, which took it in between; of two addresses, sshd is
        # content with one.
        while self.process.poll() is None and time.monotonic() < deadline:
            said = (self.folder / "sshd.log").read_bytes()[before:]
            if said.count(b"Server listening on") >= addresses:
                return True
            if b"Bind to port" in said:
                break
            time.sleep(0.005)
        self.process.kill()
        self.process.wait()
        return False

    def log(self) -> str:
        """Everything sshd has logged."""
        return (self.folder / "sshd.log").read_text(errors="replace")

    def session_pids(self) -> list[int]:
        """The sshd processes that serve connections of this server."""
        assert self.process is not None
        found: list[int] = []
        above = {self.process.pid}
        while above:
            above = {pid for pid, parent in parents().items() if parent in above}
            found += above
        return [pid for pid in found if _is_sshd(pid)]

    def drop_connections(self) -> None:
        """Kill the processes that serve connections, as a broken link would end them."""
        _signal(self.session_pids(), signal.SIGKILL)

    def stop(self) -> None:
        """End sshd and every connection of it, even one that is being made."""
        if self.process is None:
            return
        # What is frozen starts no more processes.
        self.process.send_signal(signal.SIGSTOP)
        frozen: set[int] = set()
        while more := set(self.session_pids()) - frozen:
            _signal(more, signal.SIGSTOP)
            frozen |= more
        self.process.kill()
        self.process.wait()
        _signal(frozen, signal.SIGKILL)
        self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_sshd(pid: int) -> bool:
    return read_of(pid, "comm").startswith(b"sshd")


if __name__ == "__main__":
    # A server by hand: python -m tests.sshd FOLDER KEY
    with TestServer("by-hand", Path(sys.argv[1]), Path(sys.argv[2])) as server:
        print(server.port, flush=True)  # noqa: T201
        sys.stdin.read()
