"""--relay: send the project to one server, and from server to server.

Each server is synced from here as usual: its lock, its list of sent files, what to send and keep. But before rsync
compares, it fetches missing files by hash from another server that has them; rsync sends the rest.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import secrets
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.protocol.framing import FrameReader, FramingError
from remote_tool.readable import readable_size
from remote_tool.transport.pool import on_every
from remote_tool.transport.sync.relayed import FileList, Relayed, list_files
from remote_tool.transport.sync.server_script import relay_words
from remote_tool.workflows.agent_client import (
    NotPreparedError,
    SupervisorMissingError,
    converse,
    install_supervisor,
    request_line,
)
from remote_tool.workflows.agent_program import source_archive
from remote_tool.workflows.events import Notice, StepProgress
from remote_tool.workflows.sync.options import STEP
from remote_tool.workflows.sync.relay_certificate import KeyPair, make_key_pair
from remote_tool.workflows.transfer_pace import TransferPace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool, Results
    from remote_tool.transport.sync.project.contents import Snapshot
    from remote_tool.transport.sync.push import PushResult
    from remote_tool.transport.sync.relayed import Asking, Relay
    from remote_tool.workflows.events import Report
    from remote_tool.workflows.sync.options import Through

# Below this size, sending from here is faster than arranging a relay.
WORTH_BYTES = 256 * 1024
# A source serves this many servers at once; each receiver becomes a source too.
LINKS = 2
# Seconds to wait for a server that may already have the project.
PATIENCE = 3.0
SHARE_SECONDS = 60.0
MOST_ADDRESSES = 64
LAST_PORT = 65535
# Progress reported by a fetching server; only displayed.
_RECEIVED = re.compile(rb'"received":([0-9]{1,15})[,}]')


@dataclass
class Source:
    """A server that has the project and serves it.

    Attributes:
        server: Its name.
        snapshot: Its state of the project.
        request: The request for another server to fetch from it.
        files: The files it serves.
        free: How many more servers it can serve now.
        trusted: Whether the last fetch got something.
    """

    server: str
    snapshot: str
    request: Mapping[str, Any] = field(repr=False)
    files: FileList = field(repr=False)
    free: int = LINKS
    trusted: bool = False


@dataclass(frozen=True)
class _Waiter:
    """A server that lacks a state of the project, waiting for a source, or None to be sent to from here."""

    server: str
    snapshot: str
    turn: asyncio.Future[Source | None]


async def relay_to_all(
    through: Through,
    servers: Sequence[str],
    send: Callable[[str, Relay | None], Awaitable[PushResult]],
    report: Report,
    *,
    checksum: bool,
) -> Results[PushResult]:
    """Send the project to all servers, to most of them from another one."""
    async with Exchange(through.pool, through.config, servers, report, checksum=checksum) as exchange:
        exchange.folder, exchange.step = through.folder, through.step

        async def send_one(server: str) -> PushResult:
            return await exchange.send(server, partial(send, server))

        results = await on_every(servers, send_one)
        exchange.tell()
    return results


class Exchange:
    """Tracks sources and waiting servers, and decides whether a server is sent to from here or from another.

    Leaving it ends the operations opened on servers.

    Attributes:
        folder: The relayed folder; empty: the project.
        step: The step's name in messages.
    """

    folder = ""
    step = STEP

    def __init__(
        self, pool: HostPool, config: Config, servers: Sequence[str], report: Report, *, checksum: bool = False
    ) -> None:
        self._pool = pool
        self._config = config
        self._report = report
        self._checksum = checksum
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._files: dict[str, asyncio.Task[FileList]] = {}
        self._pair: KeyPair | None = None
        self._order = {server: number for number, server in enumerate(servers)}
        # Each server has one state: unknown, working, waiting, or holder.
        self._silent = set(servers)
        self._at_work: set[str] = set()
        self._waiting: deque[_Waiter] = deque()
        self._holders: dict[str, str] = {}
        # Some holders are asked to serve.
        self._opening: set[str] = set()
        self._sources: list[Source] = []
        self._sent = self._relayed = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *self._files.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.__aexit__(kind, error, trace)

    # Called by a sync

    async def send(self, server: str, push: Callable[[Relay | None], Awaitable[PushResult]]) -> PushResult:
        """Sync a server, tracked meanwhile: it may become a source, unless it is this machine."""
        try:
            if self._config.servers[server].localhost:
                return await push(None)
            result = await push(partial(self._relay, server))
            self._holders[server] = result.snapshot
            self._sent += result.bytes
            self._relayed += result.relayed
            return result
        finally:
            self._silent.discard(server)
            self._at_work.discard(server)
            self._dispatch()

    def tell(self) -> None:
        """Report how much was sent from here, and how much was relayed."""
        sent, relayed = readable_size(self._sent), readable_size(self._relayed)
        self._report(Notice("", f"{sent} sent from here, {relayed} from server to server"))

    async def _relay(self, server: str, asking: Asking, snapshot: Snapshot, lacking: int) -> Relayed:
        """Have a server fetch missing files, if there is a source."""
        self._silent.discard(server)
        self._at_work.add(server)
        source = None
        if lacking >= WORTH_BYTES:
            self._report(StepProgress(server, self.step, "waiting for a server that has it"))
            with asking.unhurried():
                source = await self._find_source(server, snapshot)
        else:
            self._dispatch()
        if source is None:
            return Relayed()
        try:
            return await self._bring(asking, server, source, snapshot, lacking)
        finally:
            self._give_back(source)

    # Choosing sources

    async def _find_source(self, server: str, snapshot: Snapshot) -> Source | None:
        """Wait for a source; None: send to this server from here."""
        if snapshot.id not in self._files:
            self._files[snapshot.id] = asyncio.create_task(asyncio.to_thread(list_files, snapshot))
            self._begin(self._lose_patience())
        waiter = _Waiter(server, snapshot.id, asyncio.get_running_loop().create_future())
        self._at_work.discard(server)
        self._waiting.append(waiter)
        self._dispatch()
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled() and (source := waiter.turn.result()) is not None:
                self._give_back(source)
            raise

    def _give_back(self, source: Source) -> None:
        source.free += 1
        self._dispatch()

    async def _lose_patience(self) -> None:
        await asyncio.sleep(PATIENCE)
        self._silent.clear()
        self._dispatch()

    def _dispatch(self) -> None:
        """Assign sources to waiting servers; if there are too few, open more or send from here."""
        for waiter in list(self._waiting):
            if waiter.turn.done():
                self._waiting.remove(waiter)
                continue
            source = next((each for each in self._sources if each.free and each.snapshot == waiter.snapshot), None)
            if source is not None:
                source.free -= 1
                self._end_wait(waiter, source)
        self._open_more()
        if self._waiting:
            first = min(self._waiting, key=lambda waiter: self._order[waiter.server])
            if not self._may_come(first.snapshot):
                self._end_wait(first, None)

    def _end_wait(self, waiter: _Waiter, source: Source | None) -> None:
        self._waiting.remove(waiter)
        self._at_work.add(waiter.server)
        waiter.turn.set_result(source)

    def _open_more(self) -> None:
        wanted = {waiter.snapshot for waiter in self._waiting}
        for server in [server for server, snapshot in self._holders.items() if snapshot in wanted]:
            if len(self._opening) * LINKS >= len(self._waiting):
                return
            self._opening.add(server)
            self._begin(self._open(server, self._holders.pop(server)))

    def _may_come(self, snapshot: str) -> bool:
        """Return whether a server may yet become a source for this snapshot."""
        has_source = any(source.snapshot == snapshot for source in self._sources)
        return bool(has_source or self._opening or self._at_work or self._silent)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Opening a source

    async def _open(self, server: str, snapshot: str) -> None:
        """Have a server serve its files."""
        try:
            files = await asyncio.shield(self._files[snapshot])
            async with asyncio.timeout(SHARE_SECONDS):
                request = await self._share(await self._pool.host(server), files)
        except (RemoteToolError, TimeoutError, ValueError) as error:
            self._opening.discard(server)
            self._report(Notice(server, f"cannot pass the project on: {str(error) or 'no answer'}"))
            if not self._sources and not self._opening:
                # The others would most likely fail too: giving up on all at once is faster.
                self._send_to_all()
            self._dispatch()
        else:
            self._opening.discard(server)
            self._sources.append(Source(server, snapshot, request, files))
            self._dispatch()

    def _send_to_all(self) -> None:
        for waiter in list(self._waiting):
            if not waiter.turn.done():
                self._end_wait(waiter, None)

    async def _share(self, host: Host, files: FileList) -> dict[str, Any]:
        if self._pair is None:
            self._pair = make_key_pair()
        pair = {"certificate": self._pair.certificate, "key": self._pair.key}
        configured = self._config.servers[host.name].address
        request = {**pair, "list": base64.b64encode(files.packed).decode(), "address": configured}
        request["folder"] = self.folder
        try:
            answer = await self._share_once(host, request)
        except SupervisorMissingError:
            await install_supervisor(host, self._config)
            answer = await self._share_once(host, request)
        addresses = [configured] if configured else _read_addresses(answer)
        return {**pair, "digest": files.digest, "port": _read_port(answer), "addresses": addresses}

    async def _share_once(self, host: Host, request: Mapping[str, Any]) -> Mapping[str, Any]:
        frames = await self._stack.enter_async_context(converse(host, self._config, "share", request))
        async for frame in frames:
            return frame.header
        raise JobError(f"{host.name}: no answer", server=host.name)

    # Fetching from a source

    async def _bring(self, asking: Asking, server: str, source: Source, snapshot: Snapshot, lacking: int) -> Relayed:
        """Have a server fetch missing files; report why the rest is sent from here."""
        try:
            answer = await self._fetch(asking, server, source, lacking)
            problem, bits = str(answer.get("problem") or answer.get("error") or ""), str(answer.get("brought", ""))
            names = source.files.named(bytes.fromhex(bits))
        except (NotPreparedError, FramingError, ValueError) as error:
            problem, names = str(error), frozenset()
        if problem:
            rest = "the rest" if names else "the project"
            self._report(Notice(server, f"{rest} is sent from here, not fetched from {source.server}: {problem}"))
            self._doubt(source, came=bool(names))
        else:
            source.trusted = True
        size = sum(entry.size for entry in snapshot.entries if entry.name in names)
        return Relayed(names, size, source.server if names else "")

    def _doubt(self, source: Source, *, came: bool) -> None:
        """Drop a source from which nothing can be fetched, so that not all servers try it in turn."""
        if not came and not source.trusted and source in self._sources:
            self._sources.remove(source)
        source.trusted = came

    async def _fetch(self, asking: Asking, server: str, source: Source, lacking: int) -> Mapping[str, Any]:
        pace = TransferPace()
        nonce = secrets.token_hex(16)
        line = request_line(
            self._config, "fetch", {**source.request, "checksum": self._checksum, "folder": self.folder}, nonce
        )
        words = relay_words(source_archive()[0], line)

        def heard(data: bytes) -> None:
            for received in _RECEIVED.findall(data)[-1:]:
                text = f"{pace.describe(int(received), lacking)}, from {source.server}"
                self._report(StepProgress(server, self.step, text))

        answer = await asking.ask(words, heard)
        if not answer:
            await install_supervisor(await self._pool.host(server), self._config)
            answer = await asking.ask(words, heard)
        frames = FrameReader(nonce).feed(answer)
        if not frames:
            raise FramingError("the server did not answer")
        return frames[-1].header


def _read_addresses(answer: Mapping[str, Any]) -> list[str]:
    """Return a server's addresses that are valid and usable from other servers."""
    told = answer.get("addresses")
    listed = [str(each) for each in [answer.get("seen"), *(told if isinstance(told, list) else [])] if each]
    return [each for each in dict.fromkeys(listed[:MOST_ADDRESSES]) if not ipaddress.ip_address(each).is_link_local]


def _read_port(answer: Mapping[str, Any]) -> int:
    port = answer.get("port")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= LAST_PORT:
        raise ValueError(f"{port!r:.40} is not a port")
    return port
