"""What every test has: a home of its own, no agent, a key, and real sshd servers."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, settings

from tests import figures
from tests.containers import Podman
from tests.kept_logins import masters
from tests.leftovers import new_name, remove_leftovers
from tests.machine_gpus import without_gpus
from tests.program import load_program
from tests.sshd import TestServer, make_key

if TYPE_CHECKING:
    from collections.abc import Iterator

# A busy machine is slow now and then; a test that hangs is ended by its timeout.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what the tests measure; see :mod:`tests.figures`. And let signals reach what the tests start."""
    # Whoever starts the tests in the background of a script, or with nohup, has all of them ignore these.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ["PATH"] = without_gpus(os.environ["PATH"])
    figures.open_figures(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing of it."""
    figures.close_figures(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured, after everything else."""
    figures.show_figures(terminalreporter)


class MakeServer(Protocol):
    """Starts an sshd; ``options`` are lines of its sshd_config."""

    def __call__(self, name: str = "first", **options: str) -> TestServer:
        """Return it when it answers; it is stopped after the test."""


@pytest.fixture(scope="session")
def ssh_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key that every test server accepts."""
    return make_key(tmp_path_factory.mktemp("key") / "id_ed25519")


@pytest.fixture(scope="session", autouse=True)
def _leftovers() -> None:
    """Remove what a killed run has left; one that had our pid as well, so this comes before we make anything."""
    if sys.platform == "linux" and os.geteuid() == 0:
        remove_leftovers(of_this_process=True)


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Podman, whether it works here or not; the path of its store must be short."""
    folder = Path(tempfile.gettempdir()) / new_name()
    folder.mkdir(mode=0o700)
    try:
        found = Podman(folder)
        yield found
        found.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def no_logins_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for sockets that is never used, because others may enter it; see :mod:`tests.kept_logins`."""
    folder = tmp_path_factory.mktemp("runtime") / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        live_in(tmp_path_factory.mktemp("user"), folder, patch)
        load_program()
        yield folder
    # A master ends with its server at the latest; it has the home of the test that started it.
    deadline = time.monotonic() + 300
    while (left := masters(tmp_path_factory.getbasetemp())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, no_logins_kept: Path) -> Path:
    """The user's home while the test runs."""
    home = tmp_path_factory.mktemp("user")
    live_in(home, no_logins_kept, monkeypatch)
    return home


def live_in(home: Path, sockets: Path, patch: pytest.MonkeyPatch) -> None:
    """Have no keys, no agent, no ssh_config and no settings from outside."""
    for name in [name for name in os.environ if name.startswith(("SSH_", "REMOTE_TOOL_", "XDG_"))]:
        patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("XDG_RUNTIME_DIR", str(sockets))


@pytest.fixture
def make_server(tmp_path: Path, ssh_key: Path) -> Iterator[MakeServer]:
    """A factory of servers that are stopped after the test."""
    with ExitStack() as stack:

        def make(name: str = "first", **options: str) -> TestServer:
            return stack.enter_context(TestServer(name, tmp_path / "servers" / name, ssh_key, options))

        yield make


@pytest.fixture
def two_servers(make_server: MakeServer) -> tuple[TestServer, TestServer]:
    """Two servers with fresh homes."""
    return make_server("first"), make_server("second")
