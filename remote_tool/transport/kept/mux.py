"""The packets on the socket of an OpenSSH master (PROTOCOL.mux): the kinds that are used here."""

from __future__ import annotations

import struct
from enum import IntEnum

VERSION = 4
LONGEST_PACKET = 256 * 1024  # the master's own limit
NO_ESCAPE = 0xFFFFFFFF
REQUEST_ID = 1


class Message(IntEnum):
    """The kinds of packets."""

    HELLO = 0x00000001
    NEW_SESSION = 0x10000002
    ALIVE_CHECK = 0x10000004
    TERMINATE = 0x10000005
    OK = 0x80000001
    EXIT = 0x80000004
    ALIVE = 0x80000005
    SESSION_OPENED = 0x80000006


def hello() -> bytes:
    return _packet(Message.HELLO, VERSION)


def alive_check() -> bytes:
    return _packet(Message.ALIVE_CHECK, REQUEST_ID)


def terminate() -> bytes:
    return _packet(Message.TERMINATE, REQUEST_ID)


def new_session(command: str) -> bytes:
    """Ask for a session without a terminal; its stdin, stdout and stderr follow as three descriptors."""
    empty, flags = _text(b""), (0, 0, 0, 0)  # no terminal, no X11, no agent, no subsystem
    numbers = struct.pack(">5I", *flags, NO_ESCAPE)
    return _packet(Message.NEW_SESSION, REQUEST_ID, empty + numbers + empty + _text(command.encode()))


class Packets:
    """Parses the master's packets."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, tuple[int, ...]]]:
        """Return the kind of each complete packet, and the numbers after it.

        Raises:
            ValueError: The data is not from a master.
        """
        self._data += data
        packets = []
        while len(self._data) >= 4:  # noqa: PLR2004 - the size of a length
            length = int.from_bytes(self._data[:4])
            if not 4 <= length <= LONGEST_PACKET:  # noqa: PLR2004 - the size of a kind
                raise ValueError(f"a packet of {length} bytes")
            if len(self._data) < 4 + length:
                break
            body = bytes(self._data[4 : 4 + length])
            del self._data[: 4 + length]
            kind, *numbers = struct.unpack(f">{length // 4}I", body[: length // 4 * 4])
            packets.append((kind, tuple(numbers)))
        return packets


def _packet(kind: Message, number: int, rest: bytes = b"") -> bytes:
    return _text(struct.pack(">2I", kind, number) + rest)


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data
