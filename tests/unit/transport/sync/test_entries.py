"""Columns are searched and changed a row at a time, with the result of going through all of them."""

from __future__ import annotations

import random

import pytest

from remote_tool.transport.sync import last_sync
from remote_tool.transport.sync.entries import ColumnsMaker, Entry, change_columns, entry_of
from remote_tool.transport.sync.last_sync import Columns, KnownCopy, order

# Names around a folder's are ordered before and after its slash.
PARTS = (b"a", b"a-b", b"a b", b"4 5 6", b"-", b"b\nc", b"ab", b"\xff", b"p -> q", b"./a", b"z")


@pytest.fixture(params=[0, last_sync._LOOKUP], ids=["looked up", "read through"], autouse=True)
def _lookup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_sync, "_LOOKUP", request.param)
    monkeypatch.setattr(last_sync, "_COUNTED", (16, 4))


def some_entry(name: bytes, chance: random.Random) -> Entry:
    kind = chance.choice("fffdl")
    if kind == "d":
        return Entry(name + b"/", 0, 0, 0o755)
    size, modified = chance.randrange(10**5), chance.randrange(-5, 10**9)
    target = b"a -> ./b"[: chance.randrange(1, 9)] if kind == "l" else b""
    return Entry(name, len(target) or size, modified, 0o777 if target else 0o644, target, chance.randrange(10**9))


def some_entries(count: int, chance: random.Random) -> dict[bytes, Entry]:
    names = {b"/".join(chance.choices(PARTS, k=chance.randrange(1, 4))) for _ in range(count)}
    return {name: some_entry(name, chance) for name in names}


def columns_of(entries: dict[bytes, Entry]) -> Columns:
    made = ColumnsMaker()
    for name in sorted(entries):
        made.add(entries[name])
    return made.columns()


@pytest.mark.row(188)
def test_changed_columns_are_those_of_the_changed_files() -> None:
    chance = random.Random(1)
    for _ in range(300):
        before = some_entries(chance.randrange(40), chance)
        unlike = some_entries(chance.randrange(8), chance)
        others = {name: some_entry(name, chance) for name in before if chance.random() < 0.1}
        same = {name: before[name] for name in before if chance.random() < 0.1}
        removed = {name for name in before if chance.random() < 0.1}
        coming = {**unlike, **others, **same}
        after = {name: each for name, each in before.items() if name not in removed} | coming
        touched = removed | coming.keys()
        touched |= {name + b"/" for name in touched}
        columns, wanted, gone = change_columns(columns_of(before), touched, coming.values())
        assert columns == columns_of(after)
        assert wanted == [each.name for name, each in sorted(coming.items()) if before.get(name) != each]
        assert sorted(gone.split(b"\0")[:-1]) == sorted(
            each.record[:-1]
            for name, each in before.items()
            if name in touched and (name not in after or after[name].look != each.look)
        )


@pytest.mark.row(188)
def test_files_are_found_by_their_names() -> None:
    chance = random.Random(2)
    for _ in range(300):
        entries = some_entries(chance.randrange(60), chance)
        columns = columns_of(entries)
        asked = {each.name for each in entries.values() if chance.random() < 0.3}
        asked |= {order(name) + b"/" * chance.randrange(2) for name in some_entries(5, chance)}
        found = [each for _, each in sorted(entries.items()) if each.name in asked]
        assert [*map(entry_of, columns.rows(asked))] == found
        copy = KnownCopy.of(columns)
        assert copy.sent_among(asked) == {each.name for each in found}
        assert copy.versions_of(asked) == {name: copy.versions[name] for name in copy.sent_among(asked)}


@pytest.mark.row(188)
def test_a_file_that_was_never_sent_is_not_among_the_sent() -> None:
    sent = b"".join(b"3 4 file%03d\0" % number for number in range(100)) + b"-1 -1 never\0"
    copy = KnownCopy.of(Columns(sent, b"x\0" * 101, b"5\0" * 101))
    assert copy.sent_among({b"file007", b"never", b"other"}) == {b"file007"}
    assert copy.lines_of({b"never"}) == {b"never": (b"-1 -1 never\0", b"x\0")}


@pytest.mark.row(188)
def test_columns_that_lack_records_are_noticed() -> None:
    whole = Columns(b"".join(b"3 4 file%03d\0" % number for number in range(100)), b"x\0" * 100, b"5\0" * 100)
    damaged = whole._replace(fractions=b"5\0" * 20)
    with pytest.raises((EOFError, ValueError)):
        [*damaged.rows({b"file070"})]
    assert KnownCopy.of(damaged).lines_of({b"file070"}) == {}
