"""A sync and the end of a frozen job at the same moment: neither file is lost where both have one of the same name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.promises.conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.promises.conftest import Desk

OURS = "made on the laptop\n"


class Gate:
    """Holds each sync when it has compared the files and is about to send them."""

    def __init__(self, folder: Path, program: Path) -> None:
        self._folder = folder
        self._program = program
        folder.mkdir()
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!/bin/sh\n: >{folder}/waits\nwhile [ ! -e {folder}/open ]; do sleep 0.02; done\n"
            f'exec {shutil.which("rsync")} "$@"\n'
        )
        program.chmod(0o755)

    def waits(self) -> bool:
        return (self._folder / "waits").exists()

    def open(self) -> None:
        (self._folder / "open").touch()

    def close(self) -> None:
        (self._folder / "open").unlink()
        (self._folder / "waits").unlink(missing_ok=True)

    def remove(self) -> None:
        self.open()
        self._program.unlink()


@pytest.fixture
def gate(desk: Desk, tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate", desk.servers["first"].programs / "rsync")
    yield gate
    gate.remove()


def texts(desk: Desk, name: str) -> set[str]:
    """Return what the files of the project have whose names begin so."""
    path = desk.there() / name
    return {each.read_text() for each in path.parent.glob(f"{path.name}*")}


@pytest.mark.row(296)
@pytest.mark.parametrize("name", ["results.csv", "out/results.csv"])
def test_a_job_that_ends_during_a_sync_keeps_its_file_and_the_sync_sends_its_own(
    desk: Desk, gate: Gate, name: str
) -> None:
    gate.open()
    go = desk.there().parent / f"go-{desk.there().name}"
    command = (
        f"until [ -e {go} ]; do sleep 0.05; done; mkdir -p out made; echo by it >made/a; echo made by the job >{name}"
    )
    desk.does("job-run", "--frozen", "--cmd", command)
    gate.close()
    path = desk.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(OURS)
    syncs = desk.runs_meanwhile("rsync")
    until(gate.waits, "the sync is about to send")
    go.touch()
    desk.waits_for(1, "succeeded")
    # The next job finds it, as long as the sync runs.
    assert (desk.there() / name).read_text() == "made by the job\n"
    # What is a link to a folder, a sync could write through.
    assert not (desk.there() / "made").is_symlink()
    assert (desk.there() / "made" / "a").read_text() == "by it\n"
    gate.open()
    said, _ = syncs.communicate(timeout=300)
    assert syncs.returncode == 0, said
    desk.does("clean", "--yes")
    assert texts(desk, name) == {OURS, "made by the job\n"}
    assert (desk.there() / name).read_text() == OURS
