"""The terminal of this program: raw while a program on a server has it, and restored afterwards.

Some keys are for us and not for the program: ``~.`` and others after a new line as with ssh, and Ctrl-].
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import one_line
from remote_tool.protocol.terminal import DEFAULT_WINDOW, END, INPUT, REDRAW, ScreenModes, message, window_message
from remote_tool.transport.daemon_threads import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from remote_tool.transport.host import Stream

PIECE = 16 * 1024
SCREENFUL = 4096
# Messages that wait for the connection. Beyond that, a pipe is not read, but a keyboard is, as our keys may follow a
# paste.
MOST_WAITING, MOST_TYPED = 8, 8192
VARIABLES = ("TERM", "COLORTERM")
ESCAPE = ord("~")
BRACKET = 0x1D
SUSPEND_KEY = 0x1A
NEW_LINES = b"\r\n"
# Where lines scroll: down to the next line, which may scroll them all; there, a new line that moves the others down.
BELOW = b"\n\x1b[A\x1b7\x1b[B\r\x1b[L\x1b[0;7m%s\x1b[0m\x1b8"
NOT_BELOW = b"\x1b7\x1b[B\r\x1b[M\x1b8"
# Where a program has the whole screen: over its last line, which it has to draw again.
LAST = b"\x1b7\x1b[%d;1H\x1b[0;7m\x1b[2K%s\x1b[0m\x1b8"
NOT_LAST = b"\x1b7\x1b[%d;1H\x1b[0m\x1b[2K\x1b8"


class LocalScreen:
    """Standard input and output, as a workflow sees them.

    Args:
        bracket: Whether Ctrl-] detaches.
        help_text: The text that ``~?`` shows.
    """

    def __init__(self, *, bracket: bool, help_text: str) -> None:
        self._leave_hint = "Ctrl-] detaches" if bracket else "~. on a new line disconnects"
        self._notice = NoticeLine()
        self._detached = asyncio.Event()
        self._escapes = Escapes(bracket=bracket)
        self._help = help_text
        self._screen_modes = ScreenModes()
        self._saved_attributes: list[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(0 if self.is_terminal else MOST_WAITING)
        self._is_full = False
        self._is_resized = False
        self._last_byte = b""
        # The first one becomes readable when the terminal is restored, which closes the second one.
        self._restored, self._until_restored = os.pipe()

    @cached_property
    def is_terminal(self) -> bool:
        """Return whether input and output are a terminal."""
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
        return "\n" if self._saved_attributes is not None and self._last_byte not in {b"", b"\n"} else ""

    @contextmanager
    def restored(self) -> Iterator[Self]:
        """Leave the terminal as it is now, whatever happens in between."""
        former_handler = signal.signal(signal.SIGWINCH, self._note_resize) if self.is_terminal else None
        try:
            yield self
        finally:
            os.close(self._until_restored)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.remove_reader, streams.IN)
            if self._saved_attributes is not None:
                with suppress(OSError):
                    streams.write(streams.OUT, self._notice.remove() + self._screen_modes.switch_off())
                self._restore_attributes()
            if former_handler is not None:
                signal.signal(signal.SIGWINCH, former_handler)

    async def begin(self) -> None:
        """Take over the terminal, and begin to read; keys typed without a connection are dropped."""
        self._loop = asyncio.get_running_loop()
        if self.is_terminal:
            if self._saved_attributes is None:
                self._saved_attributes = termios.tcgetattr(streams.IN)
                self._make_raw()
                self._loop.add_reader(streams.IN, self._read_keyboard, self._loop)
            while not self._queue.empty() and not self._detached.is_set():
                self._queue.get_nowait()
            self._resume_reading()
            self._queue.put_nowait(window_message(*self.window))
        else:
            threading.Thread(target=self._read_pipe, args=(self._loop,), name="stdin", daemon=True).start()

    async def next(self) -> bytes | None:
        """Return the next message; None once the user detaches."""
        while True:
            if self._is_resized:
                self._is_resized = False
                return window_message(*self.window)
            queued = await self._queue.get()
            if self._queue.empty():
                self._resume_reading()
            if queued != b"":
                return queued

    async def left(self) -> None:
        """Return as soon as the user detaches."""
        await self._detached.wait()

    def announce(self, text: str, *, is_over: bool) -> bool:
        """Show a notice, or remove the one that is over; return False while no program has the terminal."""
        if self._saved_attributes is None:
            return False
        self._remove_notice()
        if not is_over:
            self._draw_notice(f"{text} ({self._leave_hint})")
        return True

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give the terminal back for a moment, for a question to the user before the next connection."""
        if self._saved_attributes is None or self._loop is None:
            yield
            return
        self._loop.call_soon_threadsafe(self._loop.remove_reader, streams.IN)
        notice = self._notice.text
        self._show_own_screen()
        if not self._screen_modes.is_full_screen:
            streams.write(streams.OUT, self.line_break.encode())
            self._last_byte = b"\n"
        try:
            yield
        finally:
            self._show_program_screen()
            if notice:
                self._draw_notice(notice)
            self._loop.call_soon_threadsafe(self._loop.add_reader, streams.IN, self._read_keyboard, self._loop)

    async def show(self, stream: Stream, output: bytes) -> None:
        """Show output as it is; a reader that is slow delays no other work."""
        self._remove_notice()
        self._screen_modes.feed(output)
        self._last_byte = output[-1:] or self._last_byte
        while output:
            # A thread takes longer than a write to a terminal that has room.
            if self._saved_attributes is None or not select.select([], [streams.OUT], [], 0)[1]:
                await in_daemon_thread(partial(streams.write, int(stream), output), name="screen")
                return
            streams.write(streams.OUT, output[:SCREENFUL])
            output = output[SCREENFUL:]

    def _note_resize(self, _number: int, _frame: FrameType | None) -> None:
        if self._loop is not None:
            self._is_resized = True
            self._loop.call_soon_threadsafe(self._queue.put_nowait, b"")

    def _draw_notice(self, text: str) -> None:
        streams.write(streams.OUT, self._notice.draw(text, self.window, full_screen=self._screen_modes.is_full_screen))

    def _remove_notice(self) -> None:
        """Remove a notice, and let a full-screen program draw over its line."""
        if not self._notice.text:
            return
        streams.write(streams.OUT, self._notice.remove())
        if self._screen_modes.is_full_screen:
            self._queue.put_nowait(message(REDRAW))

    def _resume_reading(self) -> None:
        if self._is_full and self._loop is not None:
            self._is_full = False
            self._loop.add_reader(streams.IN, self._read_keyboard, self._loop)

    def _show_own_screen(self) -> None:
        """Show the user's own screen, in the modes of the user's shell."""
        streams.write(streams.OUT, self._notice.remove() + self._screen_modes.switch_off())
        self._restore_attributes()

    def _show_program_screen(self) -> None:
        self._make_raw()
        streams.write(streams.OUT, self._screen_modes.switch_on())

    def _make_raw(self) -> None:
        tty.setraw(streams.IN, termios.TCSADRAIN)

    def _restore_attributes(self) -> None:
        with suppress(termios.error):
            termios.tcsetattr(streams.IN, termios.TCSADRAIN, self._saved_attributes or [])

    def _read_pipe(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass on input, on a thread of its own, as stdin may be a file."""
        with suppress(OSError, ValueError):
            while self._restored not in select.select([streams.IN, self._restored], [], [])[0]:
                data = os.read(streams.IN, PIECE)
                added = self._queue.put(message(INPUT, data) if data else message(END))
                asyncio.run_coroutine_threadsafe(added, loop).result()
                if not data:
                    return

    def _read_keyboard(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass on the keys for the program, and carry out ours."""
        data = b""
        with suppress(OSError):
            data = os.read(streams.IN, PIECE)
        if not data:
            # The terminal was closed.
            loop.remove_reader(streams.IN)
            self._detach()
        for part in self._escapes.feed(data):
            if isinstance(part, bytes):
                self._queue.put_nowait(message(INPUT, part))
            elif part is TypedKey.DETACH:
                self._detach()
            elif part is TypedKey.HELP:
                self._remove_notice()
                streams.write(streams.OUT, self._help.replace("\n", "\r\n").encode())
                self._last_byte = b"\n"
            else:
                self._suspend()
        if self._queue.qsize() > MOST_TYPED:
            self._is_full = True
            loop.remove_reader(streams.IN)

    def _detach(self) -> None:
        self._queue.put_nowait(None)
        self._detached.set()

    def _suspend(self) -> None:
        """Stop this program, on the user's own screen; a full-screen program draws again afterwards."""
        self._show_own_screen()
        # This thread stops at once, not when another one gets to it.
        signal.raise_signal(signal.SIGTSTP)
        self._show_program_screen()
        self._note_resize(0, None)
        if self._screen_modes.is_full_screen:
            self._queue.put_nowait(message(REDRAW))


class TypedKey(Enum):
    """A request of the user."""

    DETACH = "detach"
    SUSPEND = "suspend"
    HELP = "help"


AFTER_ESCAPE = {ord("."): TypedKey.DETACH, SUSPEND_KEY: TypedKey.SUSPEND, ord("?"): TypedKey.HELP}


class Escapes:
    """Finds our keys among typed bytes.

    Args:
        bracket: Whether Ctrl-] detaches too.
    """

    def __init__(self, *, bracket: bool) -> None:
        self._bracket = bracket
        self._at_line_start = True
        self._after_escape = False

    def feed(self, typed: bytes) -> Iterator[bytes | TypedKey]:
        """Yield the bytes for the program and our keys, in order."""
        passed = bytearray()
        for byte in typed:
            key = self._key(byte, passed)
            if key is not None:
                if passed:
                    yield bytes(passed)
                    passed.clear()
                yield key
        if passed:
            yield bytes(passed)

    def _key(self, byte: int, passed: bytearray) -> TypedKey | None:
        """Return the key that a byte completes; None if it is added to the bytes for the program, or held back."""
        if self._after_escape:
            self._after_escape = False
            if byte in AFTER_ESCAPE:
                self._at_line_start = True
                return AFTER_ESCAPE[byte]
            passed.append(ESCAPE)
            if byte == ESCAPE:
                self._at_line_start = False
                return None
        elif byte == ESCAPE and self._at_line_start:
            self._after_escape = True
            return None
        if byte == BRACKET and self._bracket:
            return TypedKey.DETACH
        passed.append(byte)
        self._at_line_start = byte in NEW_LINES
        return None


class NoticeLine:
    """A line of ours below the cursor, or over the last line of a full-screen program; the screen can be restored.

    It is drawn only while the server is silent, so the cursor is where the program left it.

    Attributes:
        text: The text of the line; empty when there is none.
    """

    def __init__(self) -> None:
        self.text = ""
        self._removal = b""

    def draw(self, text: str, window: tuple[int, int], *, full_screen: bool) -> bytes:
        """Return the bytes that draw a text, cut to one line of a window of these rows and columns."""
        rows, columns = window
        shown = fitted(one_line(text), columns - 1).encode(errors="replace")
        self.text = text
        self._removal = NOT_LAST % rows if full_screen else NOT_BELOW
        return LAST % (rows, shown) if full_screen else BELOW % shown

    def remove(self) -> bytes:
        """Return the bytes that remove it; empty when there is none."""
        removal, self._removal, self.text = self._removal, b"", ""
        return removal


def fitted(text: str, width: int) -> str:
    """Cut a text that is too long, before its last semicolon if there is room: what follows says what to do."""
    problem, semicolon, rest = text.rpartition("; ")
    room = width - len(f"…{semicolon}{rest}")
    if len(text) <= width or not semicolon or room <= 0:
        return text[:width]
    return f"{problem[:room]}…{semicolon}{rest}"
