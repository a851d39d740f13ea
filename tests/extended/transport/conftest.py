"""One server and a connection to it, for the tests of what a connection does."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from remote_tool.transport.pool import HostPool
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Host
    from tests.conftest import MakeServer
    from tests.sshd import TestServer


@dataclass
class Told:
    """What a pool told the user."""

    notices: list[tuple[str, str]] = field(default_factory=list)
    traces: list[tuple[str, str, float]] = field(default_factory=list)

    def notice(self, server: str, text: str) -> None:
        self.notices.append((server, text))

    def trace(self, server: str, label: str, seconds: float) -> None:
        self.traces.append((server, label, seconds))

    @property
    def text(self) -> str:
        return "\n".join(f"{server}: {text}" for server, text in self.notices)


class LogIn(Protocol):
    """Logs in to a server with a pool of its own."""

    def __call__(
        self, server: TestServer, *, ask: Callable[[str], str | None] | None = None, **changes: Any
    ) -> AbstractAsyncContextManager[Host]:
        """``changes`` are fields of the server's configuration."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., Config]:
    """Configure one server; keywords change its fields."""

    def configure(server: TestServer, **changes: Any) -> Config:
        config = make_configuration([server], tmp_path / "project")
        return replace(config, servers={server.name: replace(config.servers[server.name], **changes)})

    return configure


@pytest.fixture
def log_in(config_of: Callable[..., Config], told: Told) -> LogIn:
    @asynccontextmanager
    async def context(
        server: TestServer, *, ask: Callable[[str], str | None] | None = None, **changes: Any
    ) -> AsyncIterator[Host]:
        config = config_of(server, **changes)
        async with HostPool(config, report=told.notice, trace=told.trace, ask_password=ask) as pool:
            yield await pool.host(server.name)

    return context


@pytest.fixture
def server(make_server: MakeServer) -> TestServer:
    return make_server("first")


@pytest.fixture
async def host(server: TestServer, log_in: LogIn) -> AsyncIterator[Host]:
    async with log_in(server) as host:
        yield host
