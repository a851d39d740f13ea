"""Commands that servers run when a job has ended, and the readers of ``on_end:`` and ``on_empty:``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.readers import text_of

if TYPE_CHECKING:
    from remote_tool.config.document import ConfigNode
    from remote_tool.config.keys import ProjectParts

DEFAULT_ON_EMPTY_AFTER = 600.0


@dataclass(frozen=True)
class OnEnd:
    """A command that a server runs when a job has ended.

    Attributes:
        run: For the shell.
        secrets: Names of local variables whose values only this command gets.
    """

    run: str
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class OnEmpty(OnEnd):
    """A command that a server runs when a job has ended and none is left.

    Attributes:
        after: Seconds that it waits for another job first.
    """

    after: float = DEFAULT_ON_EMPTY_AFTER


def read_on_end(place: ConfigNode, _project: ProjectParts) -> OnEnd | None:
    """Read a command, or a command with the names of its secrets."""
    return _command(place, ("run", "secrets"))


def read_on_empty(place: ConfigNode, _project: ProjectParts) -> OnEmpty | None:
    """Read a command, or a command with the names of its secrets and how long to wait."""
    command = _command(place, ("run", "secrets", "after"))
    if command is None:
        return None
    values = place.entries(("run", "secrets", "after")) if place.is_mapping else {}
    after = forms.read_duration(text_of(values, "after", forms.DURATION) or "")
    return OnEmpty(command.run, command.secrets, DEFAULT_ON_EMPTY_AFTER if after is None else after)


def _command(place: ConfigNode, keys: tuple[str, ...]) -> OnEnd | None:
    if not place.is_mapping:
        return OnEnd(place.text(forms.SCRIPT) or "")
    values = place.entries(keys)
    if "run" not in values:
        place.refuse("requires run: the command")
        return None
    items = (
        values["secrets"].items("a list of variables, such as [NTFY_TOKEN]", are_secret=True)
        if "secrets" in values
        else ()
    )
    secrets = tuple(text for each in items if (text := each.text(forms.SECRET_VARIABLE)) is not None)
    return OnEnd(text_of(values, "run", forms.SCRIPT) or "", secrets)
