"""The keys that are for us, in whatever pieces they come, and the line that we draw."""

from __future__ import annotations

import pytest

from remote_tool.cli.local_screen import Escapes, TypedKey, fitted
from remote_tool.protocol.terminal import ScreenModes, without_questions

DETACH, SUSPEND, HELP = TypedKey.DETACH, TypedKey.SUSPEND, TypedKey.HELP


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        (b"ls\r", [b"ls\r"]),
        (b"~.", [DETACH]),
        (b"ls\r~.", [b"ls\r", DETACH]),
        (b"a~.", [b"a~."]),
        (b"~~.", [b"~."]),
        (b"~~~.", [b"~~."]),
        (b"\r~x~.", [b"\r~x~."]),
        (b"\r~\r~.", [b"\r~\r", DETACH]),
        (b"\r~?~.", [b"\r", HELP, DETACH]),
        (b"~\x1ax", [SUSPEND, b"x"]),
        (b"a\x1db", [b"a", DETACH, b"b"]),
        (b"\xc3\xa9\n~.", [b"\xc3\xa9\n", DETACH]),
    ],
)
def test_keys_of_ours_come_after_a_new_line(typed: bytes, passed: list[bytes | TypedKey]) -> None:
    assert list(Escapes(bracket=True).feed(typed)) == passed
    escapes = Escapes(bracket=True)
    pieces = [found for byte in typed for found in escapes.feed(bytes([byte]))]
    assert _joined(pieces) == passed


def test_a_plain_shell_keeps_the_bracket() -> None:
    assert list(Escapes(bracket=False).feed(b"a\x1d")) == [b"a\x1d"]


def _joined(pieces: list[bytes | TypedKey]) -> list[bytes | TypedKey]:
    joined: list[bytes | TypedKey] = []
    for piece in pieces:
        if isinstance(piece, bytes) and joined and isinstance(last := joined[-1], bytes):
            joined[-1] = last + piece
        else:
            joined.append(piece)
    return joined


def test_modes_are_switched_back_and_on_again() -> None:
    output = b"a\x1b[?1049h\x1b[?1;2004h\x1b[?25l text \x1b[?2004l\x1b[?1000h\x1b[?1000l"
    for size in (1, 5, len(output)):
        modes = ScreenModes()
        for start in range(0, len(output), size):
            modes.feed(output[start : start + size])
        assert modes.is_full_screen
        assert modes.switch_on() == b"\x1b[?1h\x1b[?25l\x1b[?1049h"
        assert modes.switch_off().startswith(b"\x1b[?1l\x1b[?25h\x1b[?1049l")
    modes.feed(b"\x1b[?1049l\x1b[?25h\x1b[?1l")
    assert not modes.is_full_screen
    assert modes.switch_off() == b""


def test_what_is_shown_again_asks_the_terminal_nothing() -> None:
    questions = b"\x1b[6n\x1b[c\x1b[>0c\x1b[?u\x1b]11;?\x07\x1b]10;?\x1b\\\x1bP+q544e\x1b\\\x1b[?2026$p\x05"
    assert without_questions(b"a" + questions + b"\x1b[1;31mb\x1b[0m") == b"a\x1b[1;31mb\x1b[0m"


def test_a_line_that_is_too_long_keeps_what_to_do() -> None:
    lost = "away: the connection was lost: [Errno 104] Connection reset by peer; connecting again (Ctrl-] detaches)"
    assert fitted(lost, 79) == "away: the connection was lost: [Errno 104]…; connecting again (Ctrl-] detaches)"
    assert fitted(lost, 200) == lost
    assert fitted(lost, 20) == "away: the connection"
    assert fitted("a text without one", 6) == "a text"
