"""Parse forwards, which are written as for ``ssh -L`` and ``ssh -R``: an address to listen on, and a target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from remote_tool.errors import UsageError

LOCALHOST = "localhost"
HIGHEST_PORT = 65535
HINT = "Give a port, or a forward as in ssh -L: 8888:localhost:6006, 8888:/path/to.sock, 0.0.0.0:8888:localhost:6006"
# An address in brackets may have colons.
_PARTS = re.compile(r"\[[^\[\]]*\]|[^:\[\]]+")
_SEVERAL = {LOCALHOST: ("127.0.0.1", "::1"), "*": ("0.0.0.0", "::")}  # noqa: S104 - requested by "*"


@dataclass(frozen=True)
class SocketAddress:
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
        """Return the keys of a request with which the agent connects to it."""
        return {"path": self.path} if self.path else {"host": self.host, "port": self.port}

    def as_listener(self) -> dict[str, Any]:
        """Return the keys of a request with which the agent listens on it."""
        return {"path": self.path} if self.path else {"hosts": list(self.hosts), "port": self.port}


@dataclass(frozen=True)
class Forward:
    """An address to listen on, and the one to which its connections go."""

    listen: SocketAddress
    target: SocketAddress


def parse_forward(text: str, *, reverse: bool = False) -> Forward:
    """Return a forward such as ``6006``, ``8888:localhost:6006`` or ``8888:/path/to.sock``.

    Raises:
        UsageError: The text is not a forward.
    """
    parts = _PARTS.findall(text)
    if ":".join(parts) != text or not 1 <= len(parts) <= 4:  # noqa: PLR2004 - address, port, host, port
        raise _invalid(text)
    listen_on, *target = parts
    bind = ""
    if target and not listen_on.isdigit() and not _is_path(listen_on):
        bind, listen_on, *target = listen_on, *target
    if _is_path(listen_on):
        return _parse_with_socket(text, listen_on, target, reverse=reverse, bind=bind)
    listen = SocketAddress(
        _parse_host(text, bind) if bind else LOCALHOST,
        _parse_port(text, listen_on, lowest=0 if target and not reverse else 1),
    )
    return Forward(listen, _parse_target(text, target or [listen_on]))


def _parse_with_socket(text: str, path: str, target: list[str], *, reverse: bool, bind: str) -> Forward:
    if bind or bool(target) is not reverse:
        raise _invalid(text)
    if reverse:
        return Forward(SocketAddress(path=path), _parse_target(text, target))
    return Forward(SocketAddress(), SocketAddress(path=path))


def _parse_target(text: str, parts: list[str]) -> SocketAddress:
    match parts:
        case [path] if _is_path(path):
            return SocketAddress(path=path)
        case [port]:
            return SocketAddress(LOCALHOST, _parse_port(text, port))
        case [host, port] if not _is_path(host):
            return SocketAddress(_parse_host(text, host), _parse_port(text, port))
    raise _invalid(text)


def _parse_host(text: str, word: str) -> str:
    host = word.strip("[]")
    try:
        # The look-up encodes it in the same way; a label may be empty or too long.
        is_name = bool(host.encode("idna"))
    except UnicodeError:
        is_name = False
    if not is_name:
        raise _invalid(text)
    return host


def _parse_port(text: str, word: str, *, lowest: int = 1) -> int:
    if not (word.isascii() and word.isdigit()):
        raise _invalid(text)
    if not lowest <= int(word[:9]) <= HIGHEST_PORT:
        raise UsageError(f"{word[:20]} in {text!r:.100} is not a port", hint=f"Ports are 1 to {HIGHEST_PORT}")
    return int(word)


def _is_path(word: str) -> bool:
    return word.startswith(("/", "~/"))


def _invalid(text: str) -> UsageError:
    return UsageError(f"{text!r:.100} is not a forward", hint=HINT)
