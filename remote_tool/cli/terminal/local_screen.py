"""The terminal of this program: raw while a program on a server has it, and as it was before afterwards."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from remote_tool.cli.output import streams
from remote_tool.cli.terminal.escapes import Escapes, Key
from remote_tool.cli.terminal.notice_line import NoticeLine
from remote_tool.protocol.terminal import DEFAULT_WINDOW, END, INPUT, REDRAW, ScreenModes, message, window_message
from remote_tool.transport.daemon_threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from remote_tool.transport.host import Stream

PIECE = 16 * 1024
SCREENFUL = 4096
# Messages that wait for the connection; then a pipe waits. A keyboard is read on, as our keys may come behind a paste.
MOST_WAITING, MOST_TYPED = 8, 8192
VARIABLES = ("TERM", "COLORTERM")


class LocalScreen:
    """Standard input and output, as a workflow sees them.

    Args:
        bracket: Whether Ctrl-] detaches.
        help_text: What ``~?`` shows.
    """

    def __init__(self, *, bracket: bool, help_text: str) -> None:
        self._leave_keys = "Ctrl-] detaches" if bracket else "~. on a new line disconnects"
        self._notice = NoticeLine()
        self._left = asyncio.Event()
        self._escapes = Escapes(bracket=bracket)
        self._help = help_text
        self._modes = ScreenModes()
        self._saved: list[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(0 if self.is_terminal else MOST_WAITING)
        self._is_full = False
        self._is_resized = False
        self._last = b""
        self._end, self._ended = os.pipe()

    @cached_property
    def is_terminal(self) -> bool:
        """Whether input and output are a terminal."""
        return streams.is_terminal(streams.IN) and streams.is_terminal(streams.OUT)

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns."""
        with suppress(OSError):
            size = os.get_terminal_size(streams.OUT)
            if size.lines and size.columns:
                return size.lines, size.columns
        return DEFAULT_WINDOW

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables that describe this terminal to programs."""
        return {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}

    @property
    def line_break(self) -> str:
        """The line break to print before a message, if the cursor is not at the beginning of a line."""
        return "\n" if self._saved is not None and self._last not in {b"", b"\n"} else ""

    @contextmanager
    def restored(self) -> Iterator[Self]:
        """Leave the terminal as it is now, whatever happens in between."""
        before = signal.signal(signal.SIGWINCH, self._note_resize) if self.is_terminal else None
        try:
            yield self
        finally:
            os.close(self._ended)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.remove_reader, streams.IN)
            if self._saved is not None:
                with suppress(OSError):
                    streams.write(streams.OUT, self._notice.remove() + self._modes.switch_off())
                self._cook()
            if before is not None:
                signal.signal(signal.SIGWINCH, before)

    async def begin(self) -> None:
        """Take over the terminal, and begin to read; keys typed without a connection are dropped."""
        self._loop = asyncio.get_running_loop()
        if self.is_terminal:
            if self._saved is None:
                self._saved = termios.tcgetattr(streams.IN)
                self._make_raw()
                self._loop.add_reader(streams.IN, self._take_keys, self._loop)
            while not self._queue.empty() and not self._left.is_set():
                self._queue.get_nowait()
            self._read_on()
            self._queue.put_nowait(window_message(*self.window))
        else:
            threading.Thread(target=self._read, args=(self._loop,), name="stdin", daemon=True).start()

    async def next(self) -> bytes | None:
        """Return the next message; None once the user detaches."""
        while True:
            if self._is_resized:
                self._is_resized = False
                return window_message(*self.window)
            found = await self._queue.get()
            if self._queue.empty():
                self._read_on()
            if found != b"":
                return found

    async def left(self) -> None:
        """Return as soon as the user detaches."""
        await self._left.wait()

    def announce(self, text: str, *, is_over: bool) -> bool:
        """Show a notice, or remove the one that is over; return False while no program has the terminal."""
        if self._saved is None:
            return False
        self._remove_notice()
        if not is_over:
            self._draw_notice(f"{text} ({self._leave_keys})")
        return True

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give the terminal back for a moment, for a question to the user before the next connection."""
        if self._saved is None or self._loop is None:
            yield
            return
        self._loop.call_soon_threadsafe(self._loop.remove_reader, streams.IN)
        notice = self._notice.text
        self._give_back()
        if not self._modes.is_full_screen:
            streams.write(streams.OUT, self.line_break.encode())
            self._last = b"\n"
        try:
            yield
        finally:
            self._take_back()
            if notice:
                self._draw_notice(notice)
            self._loop.call_soon_threadsafe(self._loop.add_reader, streams.IN, self._take_keys, self._loop)

    async def show(self, stream: Stream, output: bytes) -> None:
        """Show output as it is; a reader that is slow delays no other work."""
        self._remove_notice()
        self._modes.feed(output)
        self._last = output[-1:] or self._last
        while output:
            # A thread takes longer than a write to a terminal that has room.
            if self._saved is None or not select.select([], [streams.OUT], [], 0)[1]:
                await in_daemon_thread(partial(streams.write, int(stream), output), name="screen")
                return
            streams.write(streams.OUT, output[:SCREENFUL])
            output = output[SCREENFUL:]

    def _note_resize(self, _number: int, _frame: FrameType | None) -> None:
        if self._loop is not None:
            self._is_resized = True
            self._loop.call_soon_threadsafe(self._queue.put_nowait, b"")

    def _draw_notice(self, text: str) -> None:
        streams.write(streams.OUT, self._notice.draw(text, self.window, full_screen=self._modes.is_full_screen))

    def _remove_notice(self) -> None:
        """Remove a notice, and let a full-screen program draw over its line."""
        if not self._notice.text:
            return
        streams.write(streams.OUT, self._notice.remove())
        if self._modes.is_full_screen:
            self._queue.put_nowait(message(REDRAW))

    def _read_on(self) -> None:
        if self._is_full and self._loop is not None:
            self._is_full = False
            self._loop.add_reader(streams.IN, self._take_keys, self._loop)

    def _give_back(self) -> None:
        """Show the user's own screen, in the modes of the user's own programs."""
        streams.write(streams.OUT, self._notice.remove() + self._modes.switch_off())
        self._cook()

    def _take_back(self) -> None:
        self._make_raw()
        streams.write(streams.OUT, self._modes.switch_on())

    def _make_raw(self) -> None:
        tty.setraw(streams.IN, termios.TCSADRAIN)

    def _cook(self) -> None:
        with suppress(termios.error):
            termios.tcsetattr(streams.IN, termios.TCSADRAIN, self._saved or [])

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """On a thread of its own, as stdin may be a file: pass on input."""
        with suppress(OSError, ValueError):
            while self._end not in select.select([streams.IN, self._end], [], [])[0]:
                data = os.read(streams.IN, PIECE)
                added = self._queue.put(message(INPUT, data) if data else message(END))
                asyncio.run_coroutine_threadsafe(added, loop).result()
                if not data:
                    return

    def _take_keys(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the keyboard, pass on its keys, and carry out ours."""
        data = b""
        with suppress(OSError):
            data = os.read(streams.IN, PIECE)
        if not data:
            # The terminal is gone.
            loop.remove_reader(streams.IN)
            self._leave()
        for found in self._escapes.feed(data):
            if isinstance(found, bytes):
                self._queue.put_nowait(message(INPUT, found))
            elif found is Key.DETACH:
                self._leave()
            elif found is Key.HELP:
                self._remove_notice()
                streams.write(streams.OUT, self._help.replace("\n", "\r\n").encode())
                self._last = b"\n"
            else:
                self._suspend()
        if self._queue.qsize() > MOST_TYPED:
            self._is_full = True
            loop.remove_reader(streams.IN)

    def _leave(self) -> None:
        self._queue.put_nowait(None)
        self._left.set()

    def _suspend(self) -> None:
        """Stop this program, on the user's own screen; a full-screen program draws again afterwards."""
        self._give_back()
        # This thread stops at once, not when another one gets to it.
        signal.raise_signal(signal.SIGTSTP)
        # Continued.
        self._take_back()
        self._note_resize(0, None)
        if self._modes.is_full_screen:
            self._queue.put_nowait(message(REDRAW))
