"""Carry bytes between a program and its clients, on a thread of its own.

The program is on a pseudo-terminal, or on pipes for a client that has none. The output of a job goes into its log
first, and no client delays it. A shell without a log waits for its client, as with ssh.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress

from remote_tool.agent.terminal.client import Client
from remote_tool.agent.terminal.device import resize
from remote_tool.protocol.terminal import (
    BACKLOG_LIMIT,
    DEFAULT_WINDOW,
    END,
    INPUT,
    LONGEST_INPUT,
    NONCE,
    REDRAW,
    SEEN,
    SOCKET,
    WINDOW,
    read_count,
    read_window,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

    from remote_tool.agent.terminal.recording import Recording

_PIECE = 64 * 1024
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
_HUNG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_DRAIN_SECONDS = 10.0
_FINISH_SECONDS = 60.0
_TICK = 1.0
# A program sees two changes of the size only if there is time between them.
_REDRAW_SECONDS = 0.1


class Terminal:
    """The running program's side of all clients.

    Args:
        outputs: Descriptors of the program's outputs, and the number of the stream of each.
        sink: Takes the program's input.
        device: The master, when the program is on a pseudo-terminal; -1 without one.
        recording: Gets all output of a job, and clients come and go; None: there is one client, who gets all.
    """

    def __init__(
        self, outputs: Mapping[int, int], sink: int, *, device: int = -1, recording: Optional[Recording] = None
    ) -> None:
        self._outputs = dict(outputs)
        self._sink = sink
        self._device = device
        self._recording = recording
        self._listener: Optional[socket.socket] = None
        self._accepts_at = 0.0
        self._clients: List[Client] = []
        self._on_alone: Callable[[], None] = _nothing
        self._input = bytearray()
        self._input_ended = False
        self._window = DEFAULT_WINDOW
        self._redraw_at: Optional[float] = None
        self._woken, self._wake = os.pipe()
        self._drain = False
        self._drained = threading.Event()
        self._end: Optional[Dict[str, Any]] = None
        self._ends_at = 0.0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def listen(self, folder: int) -> None:
        """Accept clients at a socket in a job's folder; OSError where the file system has no sockets."""
        listener = socket.socket(socket.AF_UNIX)
        # The folder's own path may be longer than the 108 bytes that the kernel takes; only its owner may enter it.
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        listener.listen(16)
        listener.setblocking(False)
        self._listener = listener

    def serve_alone(self, client: Client, window: Tuple[int, int], on_alone: Callable[[], None]) -> None:
        """Serve one client, and call back when it has left."""
        self._clients.append(client)
        self._on_alone = on_alone
        client.window = self._window = window
        client.send({"attached": True})

    def start(self) -> None:
        """Begin to serve, once the program has been forked."""
        self._thread.start()

    def drain(self) -> None:
        """Wait until all that the program has written is in the log and on its way to the clients."""
        self._drain = True
        self._call()
        self._drained.wait(_DRAIN_SECONDS)

    def finish(self, end: Dict[str, Any]) -> None:
        """Tell the clients how the program ended, and stop serving; without a log, once they have all or have left."""
        self._ends_at = time.monotonic() + _FINISH_SECONDS
        self._end = end
        self._call()
        self._thread.join(_FINISH_SECONDS + _TICK if self._recording is not None else None)

    def _call(self) -> None:
        os.write(self._wake, b"1")

    # The methods below run on the thread.

    def _serve(self) -> None:
        while not self._is_over():
            ready = self._wait()
            self._take_output(ready)
            if ready.get(self._woken):
                os.read(self._woken, 4096)
            if self._listener is not None and ready.get(self._listener.fileno()):
                self._accept(self._listener)
            for client in self._clients:
                self._attend(client, ready)
            self._give_input()
            self._redraw()
            self._let_go()
        for client in self._clients:
            client.close()

    def _is_over(self) -> bool:
        """Tell the clients of the end once; return whether all have got it."""
        if self._end is None:
            return False
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._end:
            for client in self._clients:
                client.send(self._end)
                client.send({"done": True})
            self._end = {}
        if self._recording is None:
            return not any(client.backlog for client in self._clients)
        waiting = any(client.backlog and not client.is_stuck for client in self._clients)
        return not waiting or time.monotonic() > self._ends_at

    def _wait(self) -> Dict[int, int]:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._listener is not None and time.monotonic() >= self._accepts_at:
            poll.register(self._listener, select.POLLIN)
        is_behind = any(each.backlog > BACKLOG_LIMIT for each in self._clients)
        is_held_up = is_behind and self._recording is None and not self._drain
        events: Dict[int, int] = {} if is_held_up else dict.fromkeys(self._outputs, select.POLLIN)
        if self._input and self._sink >= 0:
            events[self._sink] = events.get(self._sink, 0) | select.POLLOUT
        for client in self._clients:
            # Its end is noticed even if the program reads no input.
            asked = select.POLLIN if len(self._input) < LONGEST_INPUT else 0
            events[client.source] = events.get(client.source, 0) | asked | select.POLLRDHUP
            if client.backlog:
                events[client.target] = events.get(client.target, 0) | select.POLLOUT
        for descriptor, mask in events.items():
            poll.register(descriptor, mask)
        return dict(poll.poll(self._longest_wait() * 1000))

    def _longest_wait(self) -> float:
        if self._drain and not self._drained.is_set():
            return 0.0
        if self._redraw_at is not None:
            return max(0.0, self._redraw_at - time.monotonic())
        return _TICK

    def _take_output(self, ready: Dict[int, int]) -> None:
        has_any = False
        for descriptor, stream in list(self._outputs.items()):
            if not ready.get(descriptor, 0) & _READABLE:
                continue
            try:
                data = os.read(descriptor, _PIECE)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            has_any = True
            if data:
                self._pass_on(stream, data)
            else:
                del self._outputs[descriptor]
        if self._drain and not has_any:
            self._drained.set()

    def _pass_on(self, stream: int, data: bytes) -> None:
        if self._recording is not None:
            self._recording.add(data)
        for client in self._clients:
            if self._recording is not None:
                client.show({"stream": stream}, data)
            else:
                client.send({"stream": stream}, data)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            # The connection is still there if descriptors are short, and poll() would return at once.
            self._accepts_at = time.monotonic() + _TICK
        else:
            number = connection.detach()
            self._clients.append(Client(number, number, lambda: os.close(number)))

    def _attend(self, client: Client, ready: Dict[int, int]) -> None:
        if ready.get(client.target, 0) & ~select.POLLIN:
            client.flush()
        if len(self._input) >= LONGEST_INPUT:
            client.has_left = client.has_left or bool(ready.get(client.source, 0) & _HUNG_UP)
        elif ready.get(client.source, 0) & (_READABLE | _HUNG_UP):
            for kind, data in client.receive():
                self._take(client, kind, data)
        if client.misses and not client.backlog:
            client.misses = False
            self._show_screen(client)
        elif client.misses and client.is_stuck:
            client.has_left = True

    def _take(self, client: Client, kind: bytes, data: bytes) -> None:
        if kind == INPUT and not self._input_ended:
            self._input += data
        elif kind == WINDOW:
            client.window = read_window(data)
            # The last one decides about the size.
            self._clients = [*(each for each in self._clients if each is not client), client]
            self._resize()
        elif kind == NONCE and not client.nonce:
            client.nonce = data.decode("ascii", "replace")
            client.send({"attached": True})
            self._show_screen(client)
        elif kind == SEEN:
            client.seen = read_count(data)
        elif kind == REDRAW:
            self._begin_to_redraw()
        elif kind == END and self._device < 0:
            self._input_ended = True

    def _show_screen(self, client: Client) -> None:
        """Bring a client's screen near to the program's; a full-screen program draws it again."""
        if self._recording is None:
            return
        client.show(*self._recording.screen(client.seen))
        # What it misses from now on it has not seen.
        client.seen = -1
        if self._recording.is_full_screen:
            self._begin_to_redraw()

    def _begin_to_redraw(self) -> None:
        """Change the size for a moment, after which full-screen programs draw everything again."""
        if self._device >= 0:
            self._redraw_at = time.monotonic() + _REDRAW_SECONDS
            with suppress(OSError):
                resize(self._device, (max(1, self._window[0] - 1), self._window[1]))

    def _redraw(self) -> None:
        if self._redraw_at is not None and time.monotonic() >= self._redraw_at:
            self._redraw_at = None
            with suppress(OSError):
                resize(self._device, self._window)

    def _resize(self) -> None:
        windows = [client.window for client in self._clients if client.window is not None]
        if windows and self._device >= 0:
            self._window = windows[-1]
            if self._redraw_at is None:
                with suppress(OSError):
                    resize(self._device, self._window)

    def _give_input(self) -> None:
        if self._input and self._sink >= 0:
            try:
                del self._input[: os.write(self._sink, self._input[:4096])]
            except BlockingIOError:
                pass
            except OSError:
                # It reads no more.
                self._input.clear()
                self._input_ended = True
        if self._input_ended and not self._input and self._sink >= 0:
            with suppress(OSError):
                os.close(self._sink)
            self._sink = -1

    def _let_go(self) -> None:
        left = [client for client in self._clients if client.has_left]
        if not left:
            return
        self._clients = [client for client in self._clients if not client.has_left]
        for client in left:
            client.close()
        self._resize()
        if not self._clients:
            self._on_alone()


def _nothing() -> None:
    """Nobody waits for it."""
