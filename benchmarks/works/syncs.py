"""Works that send a project: nothing, one file, all of it, and one large file."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from benchmarks.contest import BY_HAND, OURS, Contender, Goal, Work
from benchmarks.field import small_files
from benchmarks.works.plan import how_many, with_labml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.field import Field

SMALL_FILES = 5000
BIG_BYTES = 200_000_000
# Why a goal is missed, as profiles show it.
START = (
    "The start of the program: Python, Typer and YAML, and for a login asyncssh with cryptography, take 0.2 s of"
    " processor time, which several servers share."
)
ONE_CHANGED = (
    "By hand, one rsync compares and sends. Ours first checks the copy on the server, which costs as much as"
    " rsync's own comparison, then starts an rsync on both sides for the listed files. Sending a small file"
    " without rsync would save most of that, but would be a second way of writing into the project, with its own"
    " locks, links and partial files."
)
FIRST = (
    "The rsyncs do the same as by hand and take two thirds of the time. Our start and the list of the project"
    " come before them."
)
BIG = "One thread encrypts for all servers, while each ssh by hand has a process of its own."
EXCLUDED = "--exclude /.remote --exclude /.jobs"


def rsync_by_hand(field: Field, *, keep: bool = False, count: int | None = None) -> str:
    """Return the shell that sends the project to all servers at once.

    Args:
        field: Where.
        keep: Whether the login is kept for the next command.
        count: To so many of the servers; None: to all.
    """
    return field.in_parallel(
        *(
            f"rsync -a {EXCLUDED} -e {shlex.quote(field.ssh_program(server, keep=keep))} ./"
            f" {server.username}@{server.address}:{field.there(server, 'hand')}/"
            for server in field.servers[:count]
        )
    )


def _contenders(
    field: Field, befores: Mapping[str, Callable[[], object]], *, labml_rounds: int = 2
) -> tuple[Contender, ...]:
    shell = rsync_by_hand(field)
    return (
        Contender(BY_HAND, lambda: field.shell(shell).seconds, before=befores["hand"]),
        Contender(OURS, lambda: field.tool("rsync").seconds, before=befores["ours"]),
        *with_labml(field, lambda: field.labml_tool("rsync").seconds, before=befores["labml"], rounds=labml_rounds),
    )


def _goals(field: Field, several: float, why: str) -> tuple[Goal, ...]:
    return (Goal(1.2 if len(field.servers) == 1 else several, why=why),)


def _nothing() -> None:
    """Leave all as it is."""


def unchanged(field: Field) -> Work:
    """Send a project that is there already."""
    field.fill(small_files(SMALL_FILES))
    befores = dict.fromkeys(("ours", "hand", "labml"), _nothing)
    title = f"sync, {SMALL_FILES:,} files, nothing changed, {how_many(field)}"
    return Work("sync-unchanged", title, _contenders(field, befores), _goals(field, 0.8, START))


def one_changed(field: Field) -> Work:
    """Send a project of which one file was edited."""
    field.fill(small_files(SMALL_FILES))

    def edit(root: Path) -> Callable[[], object]:
        return lambda: (root / "folder000" / "file00000.py").write_text(f"{time.time_ns()}\n")

    edits = {"ours": edit(field.ours), "hand": edit(field.hand), "labml": edit(field.labml)}
    title = f"sync, one file of {SMALL_FILES:,} changed, {how_many(field)}"
    return Work("sync-one", title, _contenders(field, edits), _goals(field, 0.9, ONE_CHANGED))


def first_small(field: Field) -> Work:
    """Send a project for the first time."""
    field.fill(small_files(SMALL_FILES))
    title = f"first sync, {SMALL_FILES:,} small files, {how_many(field)}"
    return _first(field, "sync-first", title, _goals(field, 1.15, FIRST))


def first_big(field: Field) -> Work:
    """Send one large file for the first time; it does not compress."""
    _fill_big(field)
    title = f"first sync, {BIG_BYTES / 1e6:.0f} MB in one file, {how_many(field)}"
    return _first(field, "sync-big", title, (Goal(1.0, why=BIG),) if len(field.servers) > 1 else ())


def big_again(field: Field) -> Work:
    """Send it when an earlier command has left a login; by hand, that is ``ssh`` with ControlPersist."""
    _fill_big(field)
    field.configure(keep=True)
    shell = rsync_by_hand(field, keep=True)
    contenders = (
        Contender(BY_HAND, lambda: field.shell(shell).seconds, before=lambda: field.forget("hand")),
        Contender(OURS, lambda: field.tool("rsync").seconds, before=lambda: field.forget("ours")),
    )
    title = f"the same over a kept login, by hand with ControlPersist, {how_many(field)}"
    return Work("sync-big-again", title, contenders, (Goal(1.0, why=START),))


def _fill_big(field: Field) -> None:
    block = next(iter(small_files(1, size=1_000_000).values()))
    # Each megabyte differs, so that no algorithm finds it twice.
    content = b"".join(number.to_bytes(8, "big") + block[8:] for number in range(BIG_BYTES // len(block)))
    field.fill({"weights.bin": content})


def _first(field: Field, key: str, title: str, goals: tuple[Goal, ...]) -> Work:
    def forget(name: str) -> Callable[[], object]:
        return lambda: field.forget(name)

    befores = {name: forget(name) for name in ("ours", "hand", "labml")}
    return Work(key, title, _contenders(field, befores, labml_rounds=1), goals)
