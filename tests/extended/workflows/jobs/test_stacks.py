"""job-stacks on two real servers: the ranks of a launch, wherever they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, LaunchRequest, StartRequest, Workspace
from remote_tool.workspace import Hooks
from tests.extended.workflows.jobs.test_jobs import until
from tests.program import remote_tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAIN = """\
import os, time

def load():
    time.sleep(600)

def reduce():
    time.sleep(600)

load() if os.environ["RANK"] == "3" else reduce()
"""
HANG = ["load (hang.py:4)", *["reduce (hang.py:7)"] * 3]
# Two ranks on each of two servers; the second one fails when it is told.
RANKS = """
rm -f fail-now
for i in 0 1; do RANK=$((NODE_RANK * 2 + i)) python hang.py & done
[ $NODE_RANK = 0 ] && wait
until [ -e fail-now ]; do sleep 0.1; done
exit 5
"""


@pytest.fixture
def launch(shared_project: Path) -> Iterator[tuple[Workspace, list[str]]]:
    """A launch of four ranks that hang, one at another place than the rest."""
    (shared_project / "hang.py").write_text(TRAIN)
    workspace = Workspace.find(shared_project)
    jobs = workspace.launch(LaunchRequest(RANKS, launcher="shell")).jobs
    ids = tuple(job.id for job in jobs)

    def places() -> list[str]:
        return sorted(each.where for each in workspace.take_stacks(JobSelection(jobs=ids[:1])).processes)

    try:
        # Each starts at its own time.
        until(lambda: places() == HANG, 100)
        yield workspace, [str(job.key) for job in jobs]
    finally:
        workspace.stop_jobs(JobSelection(jobs=ids))


@pytest.mark.row(221)
@pytest.mark.row(227)
@pytest.mark.slow
def test_equal_ranks_of_a_launch_are_shown_together_and_the_odd_one_first(
    launch: tuple[Workspace, list[str]],
) -> None:
    workspace, (key, other) = launch
    shown = remote_tool("job-stacks", key, cwd=workspace.root)
    heads = [line for line in shown.stdout.splitlines() if not line.startswith(" ")]
    assert heads == ["rank 3: load (hang.py:4)", "ranks 0-2: reduce (hang.py:7)"]
    document = json.loads(remote_tool("job-stacks", other, "--json", cwd=workspace.root).stdout)
    assert [group["label"] for group in document["groups"]] == ["rank 3", "ranks 0-2"]
    assert {each["server"] for group in document["groups"] for each in group["processes"]} == {"first", "second"}
    killed = remote_tool("job-kill", key, other, "--stacks", cwd=workspace.root)
    assert killed.returncode == 0
    assert "rank 3: load (hang.py:4)" in killed.stderr
    # Those of both servers: it is one launch.
    ended = remote_tool("job-stacks", key, cwd=workspace.root)
    heads = [line for line in ended.stdout.splitlines() if not line.startswith(" ")]
    assert heads == [f"kept by job {key} on first:", f"kept by job {other} on second:"]
    assert "    rank 3, process " in ended.stdout
    assert " in load" in ended.stdout
    document = json.loads(remote_tool("job-stacks", other, "--json", cwd=workspace.root).stdout)
    assert [(each["job"], each["server"]) for each in document["kept"]] == [(int(key), "first"), (int(other), "second")]


@pytest.mark.row(222)
@pytest.mark.slow
def test_a_node_keeps_its_stacks_before_it_is_stopped_for_the_failure_of_another(
    launch: tuple[Workspace, list[str]],
) -> None:
    workspace, (first, second) = launch
    ids = {str(job.key): job.id for job in workspace.list_jobs().jobs}
    workspace.run("touch fail-now", ["second"])
    answer = workspace.wait_jobs(JobSelection(jobs=(first, second)), timeout=300)
    assert [job.exit_code for job in answer.jobs if str(job.key) == second] == [5]
    shown = workspace.run(f"cat .jobs/{ids[first]}/stacks.txt", ["first"]).values["first"].stdout
    assert "rank 0, process " in shown
    assert " in reduce" in shown


@pytest.mark.row(227)
@pytest.mark.slow
def test_job_pull_brings_what_the_server_keeps_beside_the_output(shared_project: Path) -> None:
    workspace = Workspace.find(shared_project)
    # The dump is what torch writes when a collective has timed out.
    command = 'echo dump >"$REMOTE_TOOL_PROJECT/.jobs/$REMOTE_TOOL_JOB_ID/nccl-rank-1"; exit 3'
    (job,) = workspace.start_jobs(StartRequest(command, ("first",), sync=False, on_end="echo the end")).jobs
    workspace.wait_jobs(JobSelection(jobs=(job.id,)), timeout=300)
    pulled = remote_tool("job-pull", str(job.key), cwd=workspace.root)
    folder = workspace.config.local.job(job.id)
    assert pulled.returncode == 0, pulled.stderr
    assert f"{(folder / 'nccl-rank-1').relative_to(workspace.root)}\n" in pulled.stdout
    assert (folder / "nccl-rank-1").read_text() == "dump\n"

    def on_end_is_here() -> bool:
        remote_tool("job-pull", str(job.key), cwd=workspace.root)
        log = folder / "on-end.log"
        return log.exists() and log.read_text().endswith("the on_end command ended with exit code 0\n")

    until(on_end_is_here)
    again = remote_tool("job-pull", str(job.key), cwd=workspace.root)
    assert (again.stdout, again.stderr.splitlines()[-1]) == (
        "",
        f"job {job.key} on first: 0 new, 2 already here",
    )
    none = remote_tool("job-stacks", str(job.key), cwd=workspace.root)
    assert (none.returncode, none.stderr.splitlines()) == (
        2,
        [
            f"error: Job {job.key} has ended, and no stacks were kept",
            "hint: remote-tool job-kill KEY --stacks keeps them",
        ],
    )


@pytest.mark.row(228)
@pytest.mark.slow
def test_a_job_that_is_known_here_is_asked_for_on_its_server_alone_and_once(shared_project: Path) -> None:
    workspace = Workspace.find(shared_project)
    job = workspace.start("second", "exec python -c 'import time; time.sleep(600)'", sync=False)
    try:
        asked: list[tuple[str, str]] = []
        hooks = Hooks(trace=lambda server, what, _seconds: asked.append((server, what)))
        desk = Workspace(workspace.config, hooks)
        until(lambda: any(each.stack for each in desk.take_stacks(JobSelection(jobs=(job.id,))).processes))
        asked.clear()
        assert len(desk.take_stacks(JobSelection(jobs=(str(job.job.key),))).processes) == 1
        assert [told for told in asked if told[1].startswith("supervisor: ")] == [("second", "supervisor: stacks")]
        assert {server for server, _ in asked} == {"second"}
    finally:
        job.kill("SIGKILL", grace=0.0)
