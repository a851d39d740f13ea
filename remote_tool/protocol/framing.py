r"""Frames of a server's answers, distinguishable from other output such as that of ``.bashrc``.

A frame is ``\0<nonce> <header length> <body length>\n``, a JSON header and a body of bytes. The nonce is fresh for
every call, so no other output can look like a frame.
"""

from __future__ import annotations

from remote_tool.protocol import strict_json
from remote_tool.protocol.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOISE_LIMIT = 16 * 1024 * 1024
HEADER_LIMIT = 8 * 1024 * 1024
BODY_LIMIT = 1024 * 1024
_DIGITS = b"0123456789"
_LONGEST_LENGTH = 8
_LENGTHS_LIMIT = 17
_SHORTEST_NONCE, _LONGEST_NONCE = 8, 64


class FramingError(Exception):
    """The other side violated the protocol."""


class Frame(NamedTuple):
    """One frame of an answer."""

    header: dict[str, Any]
    body: bytes


def is_nonce(nonce: object) -> bool:
    """Return whether this can mark frames: 8 to 64 hex digits."""
    if not isinstance(nonce, str):
        return False
    return _SHORTEST_NONCE <= len(nonce) <= _LONGEST_NONCE and not nonce.strip("0123456789abcdef")


def encode(nonce: str, header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return one frame; FramingError if larger than a reader accepts."""
    text = strict_json.encode(header)
    if len(text) > HEADER_LIMIT or len(body) > BODY_LIMIT:
        raise FramingError(f"An answer of {len(text)} and {len(body)} bytes is too large to send")
    return b"\0%s %d %d\n%s%s" % (nonce.encode("ascii"), len(text), len(body), text, body)


class FrameReader:
    """Splits a byte stream into frames.

    Attributes:
        noise: How many bytes preceded the first frame.
    """

    def __init__(self, nonce: str) -> None:
        self.noise = 0
        self._marker = b"\0" + nonce.encode("ascii") + b" "
        self._buffer = bytearray()
        self._in_frames = False
        self._lengths: tuple[int, int] | None = None

    @property
    def incomplete(self) -> bool:
        """Return whether an end here would truncate a frame, or come before the first."""
        return not self._in_frames or self._lengths is not None or bool(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes; return the frames they complete.

        Raises:
            FramingError: A frame is malformed or larger than the limits.
        """
        self._buffer += data
        frames = []
        while self._in_frames or self._skip_noise():
            if self._lengths is None:
                self._lengths = self._read_lengths()
            if self._lengths is None or len(self._buffer) < sum(self._lengths):
                break
            frames.append(self._take_frame(*self._lengths))
            self._lengths = None
        return frames

    def _skip_noise(self) -> bool:
        start = self._buffer.find(self._marker)
        # The end of the buffer may be the beginning of the marker.
        skipped = start if start >= 0 else max(0, len(self._buffer) - len(self._marker) + 1)
        del self._buffer[:skipped]
        self.noise += skipped
        if self.noise > NOISE_LIMIT:
            raise FramingError(f"The server printed more than {NOISE_LIMIT} bytes and no answer")
        self._in_frames = start >= 0
        return self._in_frames

    def _read_lengths(self) -> tuple[int, int] | None:
        beginning = bytes(self._buffer[: len(self._marker)])
        if not self._marker.startswith(beginning):
            raise FramingError(f"The server sent {beginning[:20]!r} between two answers")
        end = self._buffer.find(b"\n", len(self._marker), len(self._marker) + _LENGTHS_LIMIT + 1)
        if end < 0:
            if len(self._buffer) > len(self._marker) + _LENGTHS_LIMIT:
                raise FramingError("The server sent an answer without its length")
            return None
        line = bytes(self._buffer[len(self._marker) : end])
        header, _, body = line.partition(b" ")
        if not (_is_length(header) and _is_length(body)):
            raise FramingError(f"The server sent an answer of length {line!r}")
        lengths = int(header), int(body)
        if lengths[0] > HEADER_LIMIT or lengths[1] > BODY_LIMIT:
            raise FramingError(f"The server announced an answer of {lengths[0]} and {lengths[1]} bytes")
        del self._buffer[: end + 1]
        return lengths

    def _take_frame(self, header_length: int, body_length: int) -> Frame:
        end = header_length + body_length
        header = _parse_header(bytes(self._buffer[:header_length]))
        body = bytes(self._buffer[header_length:end])
        del self._buffer[:end]
        return Frame(header, body)


def _is_length(text: bytes) -> bool:
    is_number = 0 < len(text) <= _LONGEST_LENGTH and not text.strip(_DIGITS)
    return is_number and (text == b"0" or not text.startswith(b"0"))


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = strict_json.parse(text)
    except ValueError as error:
        raise FramingError(f"The server sent an answer that is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise FramingError(f"The server sent {type(header).__name__} where an object belongs")
    return header
