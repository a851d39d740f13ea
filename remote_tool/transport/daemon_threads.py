"""Work that cannot be canceled, in threads that do not delay the end of the program."""

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

    def hand_over(give: Callable[[], None]) -> None:
        if not future.done():
            give()

    def do() -> None:
        give: Callable[[], None]
        try:
            give = partial(future.set_result, work())
        except Exception as problem:  # noqa: BLE001 - raised again where it was asked
            give = partial(future.set_exception, problem)
        if not loop.is_closed():
            loop.call_soon_threadsafe(hand_over, give)

    threading.Thread(target=do, name=name, daemon=True).start()
    return await future


class Loop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for a name server when closing: asyncio's own threads are joined."""

    def __init__(self) -> None:
        self._watched = selectors.DefaultSelector()
        super().__init__(self._watched)

    def abandon(self) -> None:
        """Drop the parent's connections in a forked child, so that nothing here can write to them."""
        descriptors = [key.fd for key in self._watched.get_map().values()]
        if isinstance(self._watched, selectors.EpollSelector):
            # The epoll set is shared with the parent: unregistering here would unregister there.
            descriptors.append(self._watched.fileno())
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    async def getaddrinfo(self, host: Any, port: Any, **options: int) -> Any:  # noqa: ANN401 - as asyncio has it
        """Resolve a name."""
        return await in_daemon_thread(partial(socket.getaddrinfo, host, port, **options), name="look up a name")
