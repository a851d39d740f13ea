"""The keys of configs.yaml about the end of jobs: their limits, and what servers run then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.config import fields, forms
from remote_tool.config.model import DEFAULT_ON_EMPTY_AFTER, JobLimits, OnEmpty, OnEnd

if TYPE_CHECKING:
    from remote_tool.config.document import ConfigNode


def read_limits(values: dict[str, ConfigNode]) -> JobLimits:
    """Read the limits of jobs; 0 is the same as no limit."""
    return JobLimits(
        max_duration=_duration(values, "max_duration") or None,
        stop_if_idle=_duration(values, "stop_if_idle") or None,
        retries=int(fields.text_of(values, "retries", forms.RETRIES) or 0),
        retry_on=_retry_on(values["retry_on"]) if "retry_on" in values else (),
    )


def read_on_end(place: ConfigNode) -> OnEnd | None:
    """Read a command, or a command with the names of its secrets."""
    return _command(place, ("run", "secrets"))


def read_on_empty(place: ConfigNode) -> OnEmpty | None:
    """Read a command, or a command with the names of its secrets and how long to wait."""
    command = _command(place, ("run", "secrets", "after"))
    if command is None:
        return None
    after = _duration(place.entries(("run", "secrets", "after")), "after") if place.is_mapping else None
    return OnEmpty(command.run, command.secrets, DEFAULT_ON_EMPTY_AFTER if after is None else after)


def _command(place: ConfigNode, keys: tuple[str, ...]) -> OnEnd | None:
    if not place.is_mapping:
        return OnEnd(place.text(forms.SCRIPT) or "")
    values = place.entries(keys)
    if "run" not in values:
        place.refuse("requires run: the command")
        return None
    items = values["secrets"].items("a list of variables, such as [NTFY_TOKEN]") if "secrets" in values else ()
    secrets = tuple(text for each in items if (text := each.text(forms.VARIABLE)) is not None)
    return OnEnd(fields.text_of(values, "run", forms.SCRIPT) or "", secrets)


def _duration(values: dict[str, ConfigNode], key: str) -> float | None:
    return forms.read_duration(fields.text_of(values, key, forms.DURATION) or "")


def _retry_on(place: ConfigNode) -> tuple[str, ...]:
    items = place.items("a list of exit codes and signals, such as [75, SIGKILL]")
    return tuple(text for each in items if (text := each.text(forms.RETRY_ON)) is not None)
