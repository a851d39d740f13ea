"""An older release and this one on one server at once: each lists, follows and stops the jobs of the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import processes_of
from tests.project import make_project
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
OLD = "4a99f32"
# It prints one line, and another one when it is stopped.
COMMAND = "trap 'echo stopped; exit 0' TERM; echo started; while :; do sleep 0.05; done"


@dataclass
class Checkout:
    """A local checkout of the project, and the version of remote-tool that its user has."""

    project: Path
    source: Path
    home: Path

    def run(self, *arguments: str) -> str:
        """Run that version; return what it printed."""
        with self.started(*arguments) as program:
            output, errors = program.communicate(timeout=300)
        assert program.returncode == 0, (arguments, output, errors)
        return output

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """Start that version."""
        return subprocess.Popen(
            [sys.executable, "-m", "remote_tool", *arguments],
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHONPATH": str(self.source)},
        )

    def jobs(self) -> dict[str, Any]:
        """Return all jobs of the server by their ids."""
        return {job["id"]: job for job in json.loads(self.run("job-list", "--stopped", "--json"))["jobs"]}


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older version, as its commit has it."""
    archive = subprocess.run(["git", "archive", OLD], cwd=ROOT, check=False, capture_output=True)
    if archive.returncode != 0:
        pytest.skip(f"git has no commit {OLD} here: {archive.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("old") / "source"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def checkouts(
    tmp_path_factory: pytest.TempPathFactory, ssh_key: Path, old_source: Path
) -> Iterator[dict[str, Checkout]]:
    """One project on one server, prepared from two checkouts, each with a version of its own."""
    folder = tmp_path_factory.mktemp("versions")
    with TestServer("first", folder / "server", ssh_key) as server:
        found = {}
        for name, source in (("old", old_source), ("new", ROOT)):
            home = folder / f"{name}-home"
            home.mkdir()
            found[name] = Checkout(make_project(folder / name, [server]), source, home)
            if name == "new":
                found[name].run("rsync", "--adopt")
            found[name].run("prepare")
        assert len(list((server.home / "project" / ".remote-scripts").glob("supervisor-*"))) == len(found)
        yield found


@pytest.mark.row(34)
@pytest.mark.slow
@pytest.mark.parametrize(("starts", "stops"), [("old", "new"), ("new", "old")])
def test_two_versions_list_follow_and_stop_the_jobs_of_each_other(
    checkouts: dict[str, Checkout], starts: str, stops: str
) -> None:
    starter, other = checkouts[starts], checkouts[stops]
    failing = f"echo failing; exit 7 # {starts}"
    starter.run("job-run", "--cmd", COMMAND, "--no-sync")
    starter.run("job-run", "--cmd", failing, "--no-sync")
    jobs = {job["command"]: job_id for job_id, job in starter.jobs().items() if job["state"] != "killed"}
    running, failed = jobs[COMMAND], jobs[failing]

    listed = other.jobs()
    assert listed[running]["state"] == "running"
    assert (listed[failed]["state"], listed[failed]["exit_code"]) == ("failed", 7)
    assert "failing" in other.run("job-tail", "--job", failed, "--no-follow")

    with other.started("job-tail", "--job", running) as follower:
        assert follower.stdout is not None
        assert "started" in follower.stdout.readline()
        other.run("job-kill", "--job", running, "--yes")
        assert "stopped" in follower.stdout.read()
    assert processes_of(running) == []

    ended = starter.jobs()[running]
    assert ended["state"] == "killed"
    assert "stopped with SIGTERM" in ended["reason"]
    assert "stopped" in starter.run("job-tail", "--job", running)
