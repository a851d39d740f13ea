"""Output on a terminal: styled lines, and changing ones that show the running step of each server.

It is a module of its own because it loads Rich, which a command in a pipe does without.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from functools import cache

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from remote_tool.cli.output import streams
from remote_tool.cli.output.sanitize import one_line

HANGING_INDENT = 2


@cache
def standard_error() -> RichConsole:
    """Return Rich's console for stderr; it respects NO_COLOR, and does not interpret markup."""
    return RichConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_styled(*parts: str | tuple[str, str], wraps: bool = False) -> None:
    """Print a line of text; a part may have a style. With ``wraps``, it breaks between words and continues indented."""
    text = Text.assemble(*parts)
    standard_error().print(_wrapped(text) if wraps else text)


def _wrapped(text: Text) -> Text:
    """Wrap lines between words; a longer word is left to the terminal, which keeps it copyable."""
    return Text("\n").join(piece for line in text.split(allow_blank=True) for piece in _pieces(line))


def _pieces(line: Text) -> list[Text]:
    indent = len(line.plain) - len(line.plain.lstrip()) + HANGING_INDENT
    breaks = []
    column = 0
    for word in re.finditer(r"\s*\S+", line.plain):
        width = cell_len(word[0])
        if column > indent and column + width > standard_error().width:
            breaks.append(word.end() - len(word[0].lstrip()))
            width = cell_len(word[0].lstrip())
            column = indent
        column += width
    first, *others = line.divide(breaks)
    for piece in (first, *others):
        piece.rstrip()
    return [first, *(Text(" " * indent) + piece for piece in others)]


class RunningSteps:
    """A line for each server with a running step.

    Args:
        activity: Text to show while no step is running; empty: nothing.
    """

    def __init__(self, activity: str) -> None:
        self._idle = _Step("", activity) if activity else None
        self._steps: dict[str, _Step] = {}
        self._live: Live | None = None

    def show(self) -> None:
        """Start drawing."""
        if self._live is None and self._idle is not None and streams.is_terminal(streams.ERR):
            self._live = Live(
                console=standard_error(),
                get_renderable=self._lines,
                transient=True,
                refresh_per_second=10,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def hide(self) -> None:
        """Stop drawing and clear the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def start(self, server: str, step: str) -> None:
        """Show a step of a server as running."""
        self._steps[server] = _Step(f"{one_line(server)}: ", one_line(step))

    def show_progress(self, server: str, text: str) -> None:
        """Show the progress of a step."""
        if server in self._steps:
            self._steps[server].text = one_line(text)

    def end(self, server: str) -> None:
        """Remove the step of a server."""
        self._steps.pop(server, None)

    def _lines(self) -> RenderableType:
        steps = list(self._steps.values())
        if not steps and self._idle is not None:
            steps = [self._idle]
        return Group(*(step.line() for step in steps))


@dataclass
class _Step:
    server: str
    step: str
    text: str = ""
    began: float = field(default_factory=time.monotonic)
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))

    def line(self) -> RenderableType:
        """Return the current line."""
        seconds = time.monotonic() - self.began
        text = Text(f"{self.server}{self.step} {seconds:.0f} s {self.text}", no_wrap=True, overflow="ellipsis")
        self.spinner.update(text=text)
        return self.spinner
