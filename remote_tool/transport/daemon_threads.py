"""Threads for work that cannot be canceled; they do not delay the end of the program."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T], *, name: str) -> T:
    """Run work in its own thread and return or raise its result; if canceled, the thread is abandoned."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not future.done():
            set_outcome()

    def run() -> None:
        set_outcome: Callable[[], None]
        try:
            set_outcome = partial(future.set_result, work())
        except Exception as problem:  # noqa: BLE001 - raised again by the caller's await
            set_outcome = partial(future.set_exception, problem)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, set_outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


class Loop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for a name server when it closes; asyncio joins its threads for lookups."""

    def __init__(self) -> None:
        self._open_files = selectors.DefaultSelector()
        super().__init__(self._open_files)

    def abandon(self) -> None:
        """Detach a forked child from the connections of its parent, so that it cannot write to them."""
        descriptors = [key.fd for key in self._open_files.get_map().values()]
        if isinstance(self._open_files, selectors.EpollSelector):
            # The epoll set is shared with the parent: unregistering here would unregister there.
            descriptors.append(self._open_files.fileno())
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in descriptors:
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)

    async def getaddrinfo(self, host: Any, port: Any, **options: int) -> Any:  # noqa: ANN401 - as in asyncio
        """Resolve a host name."""
        return await in_daemon_thread(partial(socket.getaddrinfo, host, port, **options), name="look up a name")
