"""One of several programs that use a registry at once; it tells every deed when it is done, a JSON list per line."""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.jobs import registry
from remote_tool.jobs.index import RECORD
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.jobs.record_file import read_record
from remote_tool.jobs.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

OPERATIONS = 50
HOLDS_AT = 25


class Worker:
    """Does one operation after the other, each on jobs that any of the programs has made."""

    def __init__(self, folder: Path, number: int) -> None:
        self._registry = Registry(folder)
        self._number = number
        self._chance = random.Random(number)

    def run(self, *, holds: bool) -> None:
        """Do all operations; one that holds keeps the lock in the middle of them, and waits to be killed."""
        for count in range(OPERATIONS):
            if holds and count == HOLDS_AT:
                self._hold()
            self._chance.choice([self._create, self._adopt, self._finish, self._complete, self._load, self._read])()

    def _hold(self) -> None:
        with self._registry.locked():
            _tell("holding")
            time.sleep(60)

    def _create(self) -> None:
        specs = [JobSpec(new_job_id(), "gpu1", f"from {self._number}") for _ in range(self._chance.randint(1, 3))]
        _tell("new", *((job.id, job.key) for job in self._registry.create(specs)))

    def _adopt(self) -> None:
        """Adopt what may be known by now, as two laptops with one folder do."""
        known = self._some()
        new = Job(0, new_job_id(), "gpu2", "from another laptop", JobState.RUNNING)
        _tell("new", *((job.id, job.key) for job in self._registry.adopt([*known, new])))

    def _finish(self) -> None:
        seen = [replace(job, state=JobState.FAILED, exit_code=1 + self._number) for job in self._some()]
        _tell("ended", *((job.id, job.exit_code) for job in self._registry.update(seen)))

    def _complete(self) -> None:
        seen = [replace(job, logs_complete=True) for job in self._some()]
        _tell("complete", *((job.id, job.logs_complete) for job in self._registry.update(seen)))

    def _load(self) -> None:
        jobs, bad = self._registry.load()
        assert not bad
        assert len({job.key for job in jobs}) == len({job.id for job in jobs}) == len(jobs)
        _tell("loaded", len(jobs))

    def _read(self) -> None:
        for job in self._some():
            again = read_record(self._registry.folder / job.id / RECORD)
            assert (again.id, again.key) == (job.id, job.key)
            assert not job.state.is_finished or again.exit_code == job.exit_code

    def _some(self) -> Sequence[Job]:
        ids = sorted(self._registry._names())
        chosen = [self._registry.folder / job_id / RECORD for job_id in self._chance.sample(ids, min(len(ids), 3))]
        # A folder is there a moment before its record.
        return [read_record(path) for path in chosen if path.exists()]


def _tell(what: str, *deeds: object) -> None:
    sys.stdout.write(json.dumps([what, *deeds]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # On a busy machine it takes a while until each has had its turn, and that is not what is tried here.
    registry.LOCK_TIMEOUT = 200.0
    Worker(Path(sys.argv[1]), int(sys.argv[2])).run(holds=sys.argv[3:] == ["holds"])
