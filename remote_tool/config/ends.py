"""The keys of configs.yaml about the end of jobs: their limits, and what servers run then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.config import fields, forms
from remote_tool.config.model import DEFAULT_ON_EMPTY_AFTER, OnEmpty, OnEnd

if TYPE_CHECKING:
    from remote_tool.config.document import ConfigNode


def read_duration(values: dict[str, ConfigNode], key: str) -> float | None:
    """Return the seconds of a duration; None without one."""
    return forms.read_duration(fields.text_of(values, key, forms.DURATION) or "")


def read_retry_on(place: ConfigNode) -> tuple[str, ...]:
    """Read exit codes and names of signals."""
    items = place.items("a list of exit codes and signals, such as [75, SIGKILL]")
    return tuple(text for each in items if (text := each.text(forms.RETRY_ON)) is not None)


def read_on_end(place: ConfigNode) -> OnEnd | None:
    """Read a command, or a command with the names of its secrets."""
    return _command(place, ("run", "secrets"))


def read_on_empty(place: ConfigNode) -> OnEmpty | None:
    """Read a command, or a command with the names of its secrets and how long to wait."""
    command = _command(place, ("run", "secrets", "after"))
    if command is None:
        return None
    after = read_duration(place.entries(("run", "secrets", "after")), "after") if place.is_mapping else None
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
    return OnEnd(fields.text_of(values, "run", forms.SCRIPT) or "", secrets)
