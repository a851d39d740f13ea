"""The options of a launch as the record of its first node keeps them: without variables, servers and tags."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.protocol import strict_json
from remote_tool.protocol.limits import LONGEST_LAUNCH_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.launchers.request import LaunchRequest


@dataclass(frozen=True)
class RecordedLaunch:
    """The options of a launch; see :class:`~remote_tool.launchers.request.LaunchRequest`.

    Attributes:
        nodes: How many servers it had.
        listed: The number of processes of each in a host list, by node rank (None: not given); empty without a list.
        of_request: Attributes of the request, by name.
    """

    nodes: int
    listed: tuple[int | None, ...]
    of_request: Mapping[str, Any]

    @property
    def command(self) -> str:
        """The command of the launch, without what its launcher adds."""
        return str(self.of_request["command"])


def format_options(request: LaunchRequest, servers: Sequence[str], listed: Mapping[str, int | None]) -> str:
    """Return the options of a launch as JSON; empty if they are too long for a record."""
    counts = [listed.get(server) for server in servers] if listed else []
    values = {name: getattr(request, name) for name in _OF_REQUEST}
    text = json.dumps({**values, "nodes": len(servers), "listed": counts}, ensure_ascii=False)
    return text if len(text) <= LONGEST_LAUNCH_OPTIONS else ""


def read_options(text: str) -> RecordedLaunch:
    """Read the options of a launch.

    Raises:
        JobError: They are not those of a launch.
    """
    try:
        return _parse(strict_json.parse(text.encode()))
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"The options of the launch on record cannot be read ({error})") from error


def _parse(values: Any) -> RecordedLaunch:  # noqa: ANN401 - whatever the record has
    values = {**_ADDED_LATER, **values}
    found = {name: values[name] for name in _OF_REQUEST}
    wrong = [name for name, is_valid in _OF_REQUEST.items() if not is_valid(found[name])]
    nodes, listed = values["nodes"], values["listed"]
    if wrong or not _is_count(nodes) or not all(map(_is_count_or_none, listed)):
        raise ValueError(", ".join(wrong) or "nodes")
    return RecordedLaunch(nodes, tuple(listed), found)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count_or_none(value: object) -> bool:
    return value is None or _is_count(value)


# The recorded attributes of a request, and their checks; the request itself refuses the rest.
_OF_REQUEST: dict[str, Callable[[object], bool]] = {
    "launcher": _is_text,
    "command": _is_text,
    "processes": lambda value: _is_count_or_none(value) or value in ("auto", "cpu", "gpu"),
    "max_restarts": _is_count,
    "master_port": _is_count_or_none,
    "wait": lambda value: isinstance(value, bool),
    "lost_after": lambda value: _is_count_or_none(value) or isinstance(value, float),
    "restart_workers": lambda value: isinstance(value, bool),
}
# Records of older versions do not have them.
_ADDED_LATER = {"restart_workers": False}
