"""A wire between a client and a server that is cut after so many bytes: every moment of a conversation can be met."""

from __future__ import annotations

import random
import selectors
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENT, SERVER = 0, 1
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """Passes connections on to a port of this machine, and ends one of them after its budget of bytes.

    Attributes:
        port: Where it listens.
        passed: Bytes that went through since the last :meth:`cut_after`, by who sent them.
        cuts: How many connections it has cut.
    """

    def __init__(self, port: int) -> None:
        self.passed = [0, 0]
        self.cuts = 0
        self._target = port
        self._budget: tuple[int, int] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: dict[socket.socket, tuple[socket.socket, int]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_open = True
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve)

    def cut_after(self, count: int | None, sender: int = CLIENT) -> None:
        """Cut one connection when so many bytes of a sender have gone through; None: none any more."""
        with self._lock:
            self.passed = [0, 0]
            self._budget = None if count is None else (count, sender)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        self._thread.join()
        for connection in [*self._pairs, self._listener]:
            connection.close()
        self._selector.close()

    def _serve(self) -> None:
        while self._is_open:
            for key, _ in self._selector.select(0.05):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                elif connection in self._pairs:
                    self._pass_on(connection)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        for here, there, sender in ((client, server, CLIENT), (server, client, SERVER)):
            self._pairs[here] = (there, sender)
            self._selector.register(here, selectors.EVENT_READ)

    def _pass_on(self, connection: socket.socket) -> None:
        other, sender = self._pairs[connection]
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        with self._lock:
            left = self._left(sender)
            whole = data if left is None else data[:left]
            self.passed[sender] += len(whole)
            is_cut = left is not None and len(data) >= left
            if is_cut:
                self._budget = None
                self.cuts += 1
        try:
            other.sendall(whole)
        except OSError:
            is_cut = True
        if is_cut or not data:
            self._end(connection, other, reset=is_cut)

    def _left(self, sender: int) -> int | None:
        if self._budget is None or self._budget[1] != sender:
            return None
        return self._budget[0] - self.passed[sender]

    def _end(self, *connections: socket.socket, reset: bool) -> None:
        for connection in connections:
            self._selector.unregister(connection)
            del self._pairs[connection]
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.close()


def spread(total: int, count: int) -> Iterator[int]:
    """Yield so many numbers from 1 to a total, evenly, and others in each run of the tests."""
    for index in range(count):
        yield 1 + int((index + random.random()) * (total - 1) / count)
