"""What is written on a terminal: lines with colours, and those that change: what each server is doing just now."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cache

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from remote_tool.cli import streams
from remote_tool.cli.plain import one_line


@cache
def standard_error() -> RichConsole:
    """Rich on stderr; it respects NO_COLOR, and takes no text for markup."""
    return RichConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_styled(*parts: str | tuple[str, str]) -> None:
    """Print a line of text; a part may have a style."""
    standard_error().print(Text.assemble(*parts))


class RunningSteps:
    """A line for each server whose step goes on.

    Args:
        activity: What is said while no step goes on; empty: nothing.
    """

    def __init__(self, activity: str) -> None:
        self._idle = _Step("", activity) if activity else None
        self._steps: dict[str, _Step] = {}
        self._live: Live | None = None

    def show(self) -> None:
        """Draw the lines from now on."""
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
        """Take the lines away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def start(self, server: str, step: str) -> None:
        """A step of a server goes on from now."""
        self._steps[server] = _Step(f"{one_line(server)}: ", one_line(step))

    def tell(self, server: str, text: str) -> None:
        """Say how far it is."""
        if server in self._steps:
            self._steps[server].text = one_line(text)

    def end(self, server: str) -> None:
        """No step of this server goes on."""
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
        """The line as it is now."""
        seconds = time.monotonic() - self.began
        text = Text(f"{self.server}{self.step} {seconds:.0f} s {self.text}", no_wrap=True, overflow="ellipsis")
        self.spinner.update(text=text)
        return self.spinner
