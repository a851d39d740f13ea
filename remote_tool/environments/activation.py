"""The record of a finished environment, and how to activate it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_tool.config.environment import EnvironmentKind
from remote_tool.paths import shell_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.config.model import Config

SCHEMA = 1


@dataclass(frozen=True)
class Activation:
    """A finished environment.

    Attributes:
        kind: The kind, as in configs.yaml.
        prefix: Its folder, absolute.
        python: Its interpreter, absolute.
        version: The interpreter's version, like ``3.11.7``.
        channels: Conda's channels; empty for the other kinds.
        requested_prefix: The prefix of ``existing:`` in configs.yaml.
        tool: The conda that created it; empty for the other kinds.
        variables: The variables that activation sets.
        unset: The variables that activation removes.
        path: The folders that activation puts first on PATH.
    """

    kind: str
    prefix: str
    python: str
    version: str
    channels: tuple[str, ...] = ()
    requested_prefix: str = ""
    tool: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    unset: tuple[str, ...] = ()
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Activation | None:
        """Parse the record; None if it is invalid, so that the environment counts as unfinished."""
        try:
            record = json.loads(text)
            if record["schema"] != SCHEMA:
                return None
            return cls._of_record(record)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    @classmethod
    def _of_record(cls, record: Mapping[str, Any]) -> Activation:
        requested = record["wish"]
        return cls(
            kind=str(record["kind"]),
            prefix=str(record["prefix"]),
            python=str(record["python"]),
            version=str(record["version"]),
            channels=tuple(requested["channels"]),
            requested_prefix=str(requested["prefix"]),
            tool=str(record["tool"]),
            variables=dict(record["variables"]),
            unset=tuple(record["unset"]),
            path=tuple(record["path"]),
        )


def requested_spec(config: Config) -> dict[str, object]:
    """Return the settings that are recorded with a finished environment, and compared later."""
    environment = config.environment
    is_existing = environment.kind is EnvironmentKind.EXISTING
    return {
        "channels": list(environment.channels) if environment.kind.is_conda else [],
        "prefix": (environment.prefix or "") if is_existing else "",
    }


def capture_script(config: Config, prefix: str, *, tool: str = "", python: str = "") -> str:
    """Return the shell lines that record a finished prefix: activation.json, and the link to its Python.

    Args:
        config: The requested environment, and the folders.
        prefix: Its folder: absolute, with ``~``, or relative to ``$HOME``.
        tool: The conda that created it.
        python: Its interpreter, absolute; empty: ``bin/python``, or ``bin/python3``.
    """
    environment = config.environment
    request = {
        "kind": environment.kind.value,
        "prefix": prefix,
        "python": python,
        "scripts": config.remote.scripts,
        "tool": tool,
        "wish": requested_spec(config),
    }
    program = Path(__file__).with_name("capture_activation.py").read_text(encoding="utf-8")
    interpreter = shlex.quote(python) if python else f"{shell_path(prefix)}/bin/python"
    return (
        f'python={interpreter}; [ -x "$python" ] || python="$python"3\n'
        f"request={shlex.quote(json.dumps(request))}\n"
        f'"$python" -I -S - "$request" <<\'END_OF_CAPTURE\' || exit\n{program}\nEND_OF_CAPTURE\n'
    )
