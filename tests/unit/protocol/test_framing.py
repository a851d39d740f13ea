from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.protocol import framing
from remote_tool.protocol.framing import Frame, FrameReader, FramingError, encode, is_nonce

NONCE = "0123456789abcdef"
MARKER = b"\0" + NONCE.encode() + b" "

headers: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.text(max_size=8), st.integers() | st.text() | st.none())
frames = st.lists(st.builds(Frame, headers, st.binary(max_size=80)), min_size=1, max_size=4)
noises = st.binary(max_size=60)


def wire(noise: bytes, sent: list[Frame]) -> bytes:
    return noise + b"".join(encode(NONCE, frame.header, frame.body) for frame in sent)


@given(noises, frames, st.data())
def test_frames_arrive_the_same_however_the_bytes_are_split(
    noise: bytes, sent: list[Frame], data: st.DataObject
) -> None:
    text = wire(noise, sent)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    reader = FrameReader(NONCE)
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        received += reader.feed(text[start:end])
    assert received == sent
    assert reader.noise == len(noise)
    assert not reader.incomplete


@given(noises, frames)
def test_a_cut_at_any_byte_neither_raises_nor_invents_a_frame(noise: bytes, sent: list[Frame]) -> None:
    text = wire(noise, sent)
    reader = FrameReader(NONCE)
    received = []
    ends = {len(wire(noise, sent[:count])) for count in range(1, len(sent) + 1)}
    for position, byte in enumerate(text, start=1):
        received += reader.feed(bytes([byte]))
        assert received == sent[: len(received)]
        assert reader.incomplete == (position not in ends)
    assert received == sent


@given(st.binary(max_size=200))
def test_bytes_after_the_marker_give_a_frame_or_a_framing_error_and_nothing_else(rest: bytes) -> None:
    reader = FrameReader(NONCE)
    try:
        received = reader.feed(MARKER + rest)
    except FramingError:
        return
    assert all(isinstance(frame.header, dict) for frame in received)


@pytest.mark.row(106)
@pytest.mark.parametrize(
    "rest",
    [
        b"2 -1\n{}",
        b"02 0\n{}",
        b"+2 0\n{}",
        b"2  0\n{}",
        b"\xd9\xa2 0\n{}",
        b"2\n{}",
        b"99999999 0\n",
        b"2 2000000\n{}",
        b"111111111111111111111111",
        b"2 0\n[]",
        b"2 0\n\xff\xff",
        b'10 0\n{"a": NaN}',
        b"100000 0\n" + b"[" * 100000,
        b"2 0\n{}" + b"noise between frames",
    ],
)
def test_a_malformed_answer_is_refused(rest: bytes) -> None:
    """What a server sends is checked."""
    with pytest.raises(FramingError):
        FrameReader(NONCE).feed(MARKER + rest)


@pytest.mark.row(52, 53)
def test_noise_is_skipped_and_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A .bashrc may print, another call's frame included."""
    reader = FrameReader(NONCE)
    noise = b"Welcome!\n" + encode("f" * 16, {"not": "ours"}) + MARKER[:-1]
    assert reader.feed(noise + encode(NONCE, {"ours": 1})) == [Frame({"ours": 1}, b"")]
    assert reader.noise == len(noise)
    monkeypatch.setattr(framing, "NOISE_LIMIT", 1000)
    with pytest.raises(FramingError, match="more than 1000 bytes"):
        FrameReader(NONCE).feed(b"x" * 2000)


def test_a_frame_that_no_reader_takes_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "BODY_LIMIT", 10)
    with pytest.raises(FramingError):
        encode(NONCE, {}, b"x" * 11)


@pytest.mark.parametrize("nonce", ["", "short", "0123456789ABCDEF", "0123456789abcde\n", 5, None, "f" * 65])
def test_a_nonce_is_hex_digits(nonce: object) -> None:
    assert not is_nonce(nonce)
    assert is_nonce(NONCE)
