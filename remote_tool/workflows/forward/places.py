"""The two ends of a forward: a port or socket to listen on, and a target, written as for ``ssh -L`` and ``ssh -R``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from remote_tool.errors import UsageError

LOCALHOST = "localhost"
HIGHEST_PORT = 65535
HINT = "Give a port, or a forward as in ssh -L: 8888:localhost:6006, 8888:/path/to.sock, 0.0.0.0:8888:localhost:6006"
# Addresses in brackets may have colons.
_PARTS = re.compile(r"\[[^\[\]]*\]|[^:\[\]]+")
_SEVERAL = {LOCALHOST: ("127.0.0.1", "::1"), "*": ("0.0.0.0", "::")}  # noqa: S104 - asked for with "*"


@dataclass(frozen=True)
class Place:
    """A port of a host, or a Unix socket.

    Attributes:
        host: ``localhost``, ``*`` for every address of the machine, or another name or address.
        port: 0: any free port.
        path: A Unix socket, in place of host and port.
    """

    host: str = LOCALHOST
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses to listen on."""
        return _SEVERAL.get(self.host, (self.host,))

    def as_target(self) -> dict[str, Any]:
        """Return it as the agent connects to it."""
        return {"path": self.path} if self.path else {"host": self.host, "port": self.port}

    def as_listener(self) -> dict[str, Any]:
        """Return it as the agent listens on it."""
        return {"path": self.path} if self.path else {"hosts": list(self.hosts), "port": self.port}


@dataclass(frozen=True)
class Forward:
    """A place to listen on, and the place where its connections go."""

    listen: Place
    target: Place


def parse_forward(text: str, *, reverse: bool = False) -> Forward:
    """Return a forward such as ``6006``, ``8888:localhost:6006`` or ``8888:/path/to.sock``.

    Raises:
        UsageError: The text is not a forward.
    """
    parts = _PARTS.findall(text)
    if ":".join(parts) != text or not 1 <= len(parts) <= 4:  # noqa: PLR2004 - address, port, host, port
        raise _invalid(text)
    listening, *target = parts
    bind = ""
    if target and not listening.isdigit() and not _is_path(listening):
        bind, listening, *target = listening, *target
    if _is_path(listening):
        return _at_path(text, listening, target, reverse=reverse, bind=bind)
    listen = Place(
        _host(text, bind) if bind else LOCALHOST, _port(text, listening, lowest=0 if target and not reverse else 1)
    )
    return Forward(listen, _target(text, target or [listening]))


def _at_path(text: str, path: str, target: list[str], *, reverse: bool, bind: str) -> Forward:
    if bind or bool(target) is not reverse:
        raise _invalid(text)
    if reverse:
        return Forward(Place(path=path), _target(text, target))
    return Forward(Place(), Place(path=path))


def _target(text: str, parts: list[str]) -> Place:
    match parts:
        case [path] if _is_path(path):
            return Place(path=path)
        case [port]:
            return Place(LOCALHOST, _port(text, port))
        case [host, port] if not _is_path(host):
            return Place(_host(text, host), _port(text, port))
    raise _invalid(text)


def _host(text: str, word: str) -> str:
    host = word.strip("[]")
    try:
        # As the name is looked up; a label may be empty or too long.
        is_name = bool(host.encode("idna"))
    except UnicodeError:
        is_name = False
    if not is_name:
        raise _invalid(text)
    return host


def _port(text: str, word: str, *, lowest: int = 1) -> int:
    if not (word.isascii() and word.isdigit()):
        raise _invalid(text)
    if not lowest <= int(word[:9]) <= HIGHEST_PORT:
        raise UsageError(f"{word[:20]} in {text!r:.100} is not a port", hint=f"Ports are 1 to {HIGHEST_PORT}")
    return int(word)


def _is_path(word: str) -> bool:
    return word.startswith(("/", "~/"))


def _invalid(text: str) -> UsageError:
    return UsageError(f"{text!r:.100} is not a forward", hint=HINT)
