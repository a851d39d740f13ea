"""The kinds of jobs, which all keep the same promises: a row for each."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.promises.conftest import Desk

LAUNCH = "env WHERE=inside"
NAMESPACE = "unshare --map-root-user --pid --fork --mount-proc"
DIES = "kill -KILL $$"
# The first job of each project, which others wait for or repeat.
FIRST = ("job-run", "--no-sync", "--server", "first", "--follow", "--cmd", "true")


@dataclass(frozen=True)
class Kind:
    """A way to start a job.

    Attributes:
        words: Of the program, without the command.
        before: What the command begins with.
        server: Where the job runs that is looked at.
        follows: Whether the program can follow it from its start.
        follow_status: Exit status of ``--follow`` after a failure; None: that of the command.
        dies: How its command ends by SIGKILL.
        needs: A command of this machine that has to succeed.
    """

    words: tuple[str, ...]
    before: str = ""
    server: str = "first"
    follows: bool = True
    follow_status: int | None = None
    dies: str = DIES
    needs: str = "true"

    def of(self, command: str, *options: str) -> tuple[str, ...]:
        """Return the words that start this command."""
        return (*self.words, *options, "--cmd", f"{self.before}{command}")

    def start(self, desk: Desk, command: str, *options: str) -> dict[str, Any]:
        """Start a command, and return its job."""
        return self._last(json.loads(desk.does(*self.of(command, *options), "--json"))["jobs"])

    def newest(self, desk: Desk) -> dict[str, Any]:
        """Return the job that was started last."""
        return self._last(desk.jobs())

    def _last(self, jobs: list[dict[str, Any]]) -> dict[str, Any]:
        return max((job for job in jobs if job["server"] == self.server), key=lambda job: int(job["key"]))


@cache
def works(command: str) -> bool:
    """Whether this machine can run a command."""
    words = command.split()
    return (
        shutil.which(words[0]) is not None and subprocess.run(words, check=False, capture_output=True).returncode == 0
    )


KINDS = {
    "plain": Kind(("job-run", "--server", "first")),
    "frozen": Kind(("job-run", "--server", "first", "--frozen")),
    "with a terminal": Kind(("job-run", "--server", "first", "--tty")),
    "behind a launch command": Kind(("job-run", "--server", "second"), server="second"),
    "frozen, in namespaces": Kind(
        ("job-run", "--server", "third", "--frozen"),
        server="third",
        # The first process of a namespace cannot end itself so.
        dies=f"sh -c '{DIES}'",
        needs=f"{NAMESPACE} true",
    ),
    "that waited": Kind(("job-run", "--server", "first", "--after-any", "1")),
    "that was retried": Kind(
        ("job-run", "--server", "first", "--retries", "1", "--retry-on", "75"),
        before='[ "$REMOTE_TOOL_ATTEMPT" = 2 ] || exit 75; ',
    ),
    "that was run again": Kind(("job-rerun", "1")),
    "of a sweep": Kind(
        ("helper-sweep", "--server", "first", "--grid", "n=1", "--per-server", "1"), before=": {n}; ", follows=False
    ),
    "of a fan-out": Kind(
        ("helper-fan-out", "--server", "first", "--total", "1", "--per-server", "1", "--retries", "0"), follow_status=1
    ),
    "of a launch": Kind(
        ("helper-launch", "--server", "first", "--server", "second"), before="[ $NODE_RANK = 0 ] || exit 0; "
    ),
    "of an MPI launch": Kind(
        ("helper-mpi-launch", "--server", "first", "--ppn", "1"),
        # A shell watches over each rank, so a signal is an exit code, as in every shell.
        dies=f"sh -c '{DIES}'",
        needs="mpiexec.hydra --version",
    ),
}
