"""A forward takes nothing away from a server."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.promises.conftest import Desk


@pytest.mark.parametrize("kind", ["file", "empty", "folder", "link", "FIFO"])
def test_a_reverse_forward_replaces_nothing_but_a_socket(desk: Desk, kind: str) -> None:
    place, kept = desk.there() / "results", desk.there() / "kept.csv"
    kept.write_text("a day's work\n")
    made: dict[str, Callable[[], object]] = {
        "file": lambda: place.write_text("a day's work\n"),
        "empty": place.touch,
        "folder": place.mkdir,
        "link": lambda: place.symlink_to(kept),
        "FIFO": lambda: os.mkfifo(place),
    }
    made[kind]()
    before = place.lstat()
    said = desk.refuses("forward", "--reverse", f"{place}:localhost:6006")
    assert f"{place} is a {kind.replace('empty', 'file')} on the server" in said
    assert "hint:" in said
    assert (place.lstat().st_ino, place.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert kept.read_text() == "a day's work\n"


def test_a_reverse_forward_replaces_a_stale_socket_and_at_its_end_removes_only_its_own(desk: Desk) -> None:
    place, other = desk.there() / "a.sock", desk.there() / "b.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(place))
    was = place.stat().st_ino, place.stat().st_mtime_ns
    words = ("forward", "--reverse", f"{place}:localhost:6006", f"{other}:localhost:6006")
    with desk.runs_meanwhile(*words) as forwarding:
        until(lambda: other.exists() or forwarding.poll() is not None, "the forward listens")
        assert (place.stat().st_ino, place.stat().st_mtime_ns) != was
        place.unlink()
        place.write_text("a result that another program has put there\n")
        forwarding.terminate()
    until(lambda: not other.exists(), "the forward has ended on the server")
    assert place.read_text() == "a result that another program has put there\n"
