"""Jobs in any order of what can happen to them, on a real server and two laptops: what was promised always holds.

No terminal state changes, a job runs once, what has ended has no process, nobody else is signalled, and the list says
what is true once everything can be reached again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from remote_tool import Workspace
from remote_tool.errors import ConnectError, RemoteToolError
from remote_tool.jobs.job import Job, JobSpec, JobState, new_job_id
from remote_tool.jobs.registry import Registry
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import ignore
from remote_tool.workflows.jobs.follow import Chunk, FollowOptions, follow_selected
from remote_tool.workflows.jobs.listing import refresh
from remote_tool.workflows.jobs.stop import stop_on_servers
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from tests.figures import record_figure
from tests.project import make_project

from .machine import Machine, missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from remote_tool.config.model import Config

EXAMPLES = int(os.environ.get("TESTS_EXAMPLES", "7"))
STEPS = 16
# With which the Hypothesis of today follows every rule several times.
SEED = int(os.environ.get("TESTS_SEED", "39"))
PATIENCE = 300.0
LAPTOPS = st.sampled_from([0, 1])
WHICH = st.integers(0, 1000)
# A job ends when it is told how, through a pipe; so it makes no process that would get the next pid.
BEGIN = "echo $REMOTE_TOOL_JOB_ID >> ran; echo begun;"
END = 'read how < "end.$REMOTE_TOOL_JOB_ID"; eval "$how"'
FOLLOWED: Counter[str] = Counter()
KINDS = {"plain": "", "deaf": "trap '' TERM;", "family": "(setsid sleep 600 &) ; sleep 600 &"}


P = ParamSpec("P")


def counted(method: Callable[P, None]) -> Callable[P, None]:
    """Count how often a rule was followed."""

    @wraps(method)
    def follow(*arguments: P.args, **words: P.kwargs) -> None:
        FOLLOWED[method.__name__] += 1
        method(*arguments, **words)

    return follow


@dataclass
class Laptop:
    """A project folder with records of its own, and a connection that stays open as long as it may."""

    config: Config
    registry: Registry
    pool: HostPool
    ends: dict[str, Job] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return Context(self.config, self.pool, self.registry, ignore)

    def jobs(self) -> dict[str, Job]:
        jobs, bad = self.registry.load()
        assert not bad
        return {job.id: job for job in jobs}


@dataclass
class Truth:
    """What the test knows of a job.

    Attributes:
        states: Those that it may be in now.
        exit_code: With which it ended by itself.
        old: A record of its time as it ran.
    """

    states: set[JobState]
    exit_code: int | None = None
    old: Job | None = None


@seed(SEED)
class Jobs(RuleBasedStateMachine):
    """Every rule does one thing to the end, and says what may be true then."""

    machine: Machine
    template: Config
    examples = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        self.loop = asyncio.new_event_loop()
        self.truths: dict[str, Truth] = {}
        self.victims: dict[int, int] = {}
        self.ended: dict[str, bytes] = {}
        self.laptops: list[Laptop] = []

    @initialize()
    def open_laptops(self) -> None:
        self._clear()
        for number in range(2):
            root = self.template.local.root.parent / f"laptop-{self.examples}-{number}"
            shutil.copytree(self.template.local.root, root)
            config = Workspace.find(root).config
            self.laptops.append(Laptop(config, Registry(config.local.jobs), HostPool(config)))
        for number, kind in enumerate(("plain", "family", "deaf")):
            self.begin(number % 2, kind)

    def teardown(self) -> None:
        try:
            self._heal()
        finally:
            for laptop in self.laptops:
                self.loop.run_until_complete(laptop.pool.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    # What happens

    @rule(laptop=LAPTOPS, kind=st.sampled_from(sorted(KINDS)))
    @counted
    def start(self, laptop: int, kind: str) -> None:
        self.begin(laptop, kind)

    def begin(self, laptop: int, kind: str) -> None:
        spec = self._spec(kind)
        answer = self._do(start_specs(self.laptops[laptop].context, [spec]))
        assert not answer.errors
        assert answer.jobs[0].state is JobState.RUNNING
        self.truths[spec.id] = Truth({JobState.RUNNING}, old=answer.jobs[0])
        self._wait_until_begun(spec.id)

    @rule(laptop=LAPTOPS, kind=st.sampled_from(sorted(KINDS)), moment=st.integers(0, 150))
    @counted
    def start_over_a_link_that_drops(self, laptop: int, kind: str, moment: int) -> None:
        spec = self._spec(kind)
        self._drop_during(start_specs(self.laptops[laptop].context, [spec]), moment)
        self._refresh(laptop)
        job = self.laptops[laptop].jobs()[spec.id]
        if not self._folder(spec.id).exists():
            assert job.state in {JobState.STARTING, JobState.FAILED}
            return
        assert job.state is JobState.RUNNING
        self.truths[spec.id] = Truth({JobState.RUNNING}, old=job)
        self._wait_until_begun(spec.id)

    @precondition(lambda self: self._running())
    @rule(which=WHICH, code=st.sampled_from([0, 1, 2, 3, 127, 143, 255]))
    @counted
    def exit(self, which: int, code: int) -> None:
        state = JobState.SUCCEEDED if code == 0 else JobState.FAILED
        self._finish(which, f"exit {code}", Truth({state}, code))

    @precondition(lambda self: self._running())
    @rule(which=WHICH, name=st.sampled_from(["SEGV", "KILL", "USR1"]))
    @counted
    def end_by_signal(self, which: int, name: str) -> None:
        self._finish(which, f"kill -{name} $$", Truth({JobState.FAILED}))

    @precondition(lambda self: self.truths)
    @rule(laptop=LAPTOPS, which=WHICH, name=st.sampled_from(["SIGTERM", "SIGKILL"]))
    @counted
    def kill(self, laptop: int, which: int, name: str) -> None:
        job_id = self._pick(which, list(self.truths))
        self._refresh(laptop)
        answer = self._do(self._stop(laptop, job_id, name))
        assert not answer.errors
        self._is_killed(job_id)

    @precondition(lambda self: self._running())
    @rule(laptop=LAPTOPS, which=WHICH, moment=st.integers(0, 100))
    @counted
    def kill_over_a_link_that_drops(self, laptop: int, which: int, moment: int) -> None:
        job_id = self._pick(which, self._running())
        self._refresh(laptop)
        self._drop_during(self._stop(laptop, job_id, "SIGKILL"), moment)
        answer = self._do(self._stop(laptop, job_id, "SIGKILL"))
        assert not answer.errors
        self._is_killed(job_id)

    @precondition(lambda self: self._running())
    @rule(which=WHICH)
    @counted
    def supervisor_dies(self, which: int) -> None:
        job_id = self._pick(which, self._running())
        self.machine.kill(self._record(job_id, "started")["supervisor"]["pid"])
        self.truths[job_id].states = {JobState.LOST}
        self._wait(lambda: not self._supervisor_lives(job_id), "the end of a supervisor")

    @precondition(lambda self: self._running())
    @rule()
    @counted
    def drop(self) -> None:
        self.machine.drop_connections()

    @precondition(lambda self: len(self._running()) > 1)
    @rule()
    @counted
    def reboot(self) -> None:
        self.machine.reboot()
        self.victims.clear()
        for job_id in self._running():
            self.truths[job_id].states = {JobState.LOST}

    @precondition(lambda self: self._gone())
    @rule(which=WHICH, name=st.sampled_from(["supervisor", "command"]))
    @counted
    def somebody_gets_a_pid_of(self, which: int, name: str) -> None:
        pid = self._record(self._pick(which, self._gone()), "started")[name]["pid"]
        if self.machine.take_pid(pid):
            self.victims[pid] = self.machine.scan()[pid].start_time

    @rule(laptop=LAPTOPS)
    @counted
    def list_jobs(self, laptop: int) -> None:
        self._refresh(laptop)
        jobs = self.laptops[laptop].jobs()
        for job_id, truth in self.truths.items():
            self._compare(self.laptops[laptop], jobs[job_id], truth)

    @precondition(lambda self: self.truths)
    @rule(laptop=LAPTOPS, which=WHICH)
    @counted
    def tail(self, laptop: int, which: int) -> None:
        job_id = self._pick(which, list(self.truths))
        self._refresh(laptop)
        shown: list[Chunk] = []
        selection = JobSelection(jobs=(job_id,), stopped=True)
        options = FollowOptions(wait=False)
        self._do(follow_selected(self.laptops[laptop].context, selection, shown.append, options))
        written = (self._folder(job_id) / "job.out").read_bytes()
        assert b"".join(chunk.data for chunk in shown if chunk.stream == "out") == written
        assert (self.laptops[laptop].config.local.job(job_id) / "job.out").read_bytes() == written

    @precondition(lambda self: self.truths)
    @rule(laptop=LAPTOPS, which=WHICH)
    @counted
    def write_down_what_was_true_before(self, laptop: int, which: int) -> None:
        """A program that was held up records what its server said long ago."""
        old = self.truths[self._pick(which, list(self.truths))].old
        assert old is not None
        self.laptops[laptop].registry.update([replace(old, state=JobState.RUNNING)])

    # What always holds

    @invariant()
    def the_end_of_a_job_stays(self) -> None:
        for job_id in self.truths:
            path = self._folder(job_id) / "ended.json"
            if path.exists():
                text = path.read_bytes()
                assert self.ended.setdefault(job_id, text) == text
        for laptop in self.laptops:
            for job in laptop.jobs().values():
                if job.state.is_final:
                    known = laptop.ends.setdefault(job.id, job)
                    assert replace(job, logs_complete=known.logs_complete) == known

    @invariant()
    def one_tree_per_job_and_nobody_else_is_signalled(self) -> None:
        seen = self.machine.scan()
        for pid, start_time in self.victims.items():
            assert pid in seen, f"whoever got pid {pid} was killed"
            assert seen[pid].start_time == start_time
        ran = self._ran()
        assert len(ran) == len(set(ran))
        assert set(ran) <= set(self.truths)
        marked = {process.mark for process in seen.values() if process.mark}
        over = {job_id for job_id, truth in self.truths.items() if truth.states <= set(JobState) - _WITH_PROCESSES}
        assert not marked & over
        assert set(self._running()) <= marked

    # How

    def _spec(self, kind: str) -> JobSpec:
        spec = JobSpec(new_job_id(), "first", f"{KINDS[kind]} {BEGIN} {END}", grace=0.2)
        os.mkfifo(self._project / f"end.{spec.id}")
        return spec

    def _finish(self, which: int, how: str, truth: Truth) -> None:
        job_id = self._pick(which, self._running())
        self._tell(job_id, how)
        self._wait((self._folder(job_id) / "ended.json").exists, "the end of a job")
        truth.old = self.truths[job_id].old
        self.truths[job_id] = truth

    def _tell(self, job_id: str, how: str) -> None:
        pipe = self._wait(lambda: _open_for_writing(self._project / f"end.{job_id}"), "a reader")
        os.write(pipe, how.encode() + b"\n")
        os.close(pipe)

    async def _stop_on(self, laptop: Laptop, job: Job, name: str) -> Any:
        return await stop_on_servers(laptop.context, [job], signal=name)

    def _stop(self, laptop: int, job_id: str, name: str) -> Awaitable[Any]:
        return self._stop_on(self.laptops[laptop], self.laptops[laptop].jobs()[job_id], name)

    def _is_killed(self, job_id: str) -> None:
        """What was lost may have had processes, which were killed now; its record then says so."""
        truth = self.truths[job_id]
        if truth.states == {JobState.RUNNING}:
            truth.states = {JobState.KILLED}
        elif truth.states == {JobState.LOST}:
            truth.states = {JobState.KILLED if self._has(job_id, "ended") else JobState.LOST}
            assert job_id not in {process.mark for process in self.machine.scan().values()}

    def _compare(self, laptop: Laptop, job: Job, truth: Truth) -> None:
        """A laptop that has seen a job as lost learns that its processes were killed later."""
        assert job.state in truth.states, laptop
        assert truth.exit_code is None or job.exit_code == truth.exit_code

    def _heal(self) -> None:
        for number, laptop in enumerate(self.laptops):
            self._refresh(number)
            jobs = laptop.jobs()
            for job_id, truth in self.truths.items():
                self._compare(laptop, jobs[job_id], truth)
        for job_id in self.truths:
            self._do(self._stop(0, job_id, "SIGKILL"))
        assert not [process for process in self.machine.scan().values() if process.mark]

    def _refresh(self, laptop: int) -> None:
        """Ask until the server can be reached again, as a user would."""
        errors: dict[str, RemoteToolError] = {}

        def ask() -> bool:
            nonlocal errors
            errors = self._do(refresh(self.laptops[laptop].context, ["first"]))
            assert all(isinstance(error, ConnectError) for error in errors.values()), errors
            return not errors

        try:
            self._wait(ask, "an answer")
        except AssertionError as problem:
            problem.add_note(f"the last errors: {errors}")
            raise

    def _do(self, work: Awaitable[Any]) -> Any:
        async def patiently() -> Any:
            return await asyncio.wait_for(work, PATIENCE * 2)

        return self.loop.run_until_complete(patiently())

    def _drop_during(self, work: Awaitable[Any], milliseconds: int) -> None:
        """Do something whose connection is killed after a moment; how it ends is for the caller to find out."""

        async def both() -> None:
            task = asyncio.ensure_future(work)
            await asyncio.sleep(milliseconds / 1000)
            await asyncio.to_thread(self.machine.drop_connections)
            with suppress(ConnectError):
                await asyncio.wait_for(task, PATIENCE * 2)

        self.loop.run_until_complete(both())

    def _wait(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what} did not come"
            time.sleep(0.01)
        return found

    def _wait_until_begun(self, job_id: str) -> None:
        self._wait(lambda: job_id in self._ran(), "the begin of a job")

    def _running(self) -> list[str]:
        return [job_id for job_id, truth in self.truths.items() if truth.states == {JobState.RUNNING}]

    def _gone(self) -> list[str]:
        return [job_id for job_id in self.truths if job_id not in self._running() and self._has(job_id, "started")]

    def _pick(self, which: int, ids: list[str]) -> str:
        return ids[which % len(ids)]

    @property
    def _project(self) -> Path:
        return self.machine.home / "project"

    def _folder(self, job_id: str) -> Path:
        return self._project / ".jobs" / job_id

    def _has(self, job_id: str, name: str) -> bool:
        return (self._folder(job_id) / f"{name}.json").exists()

    def _record(self, job_id: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder(job_id) / f"{name}.json").read_text())
        return found

    def _ran(self) -> list[str]:
        path = self._project / "ran"
        return path.read_text().split() if path.exists() else []

    def _supervisor_lives(self, job_id: str) -> bool:
        supervisor = self._record(job_id, "started")["supervisor"]
        seen = self.machine.scan().get(supervisor["pid"])
        return seen is not None and seen.start_time == supervisor["start_time"]

    def _clear(self) -> None:
        """Begin with a server that has run nothing, but that is prepared."""
        self.machine.reboot()
        shutil.rmtree(self._project / ".jobs", ignore_errors=True)
        for path in (*self._project.glob("end.*"), *self._project.glob("ran")):
            path.unlink()


_WITH_PROCESSES = {JobState.RUNNING, JobState.STARTING, JobState.LOST}


def _open_for_writing(pipe: Path) -> int | None:
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@pytest.fixture
def machine(tmp_path: Path, ssh_key: Path) -> Iterator[Machine]:
    """A server that can be rebooted."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Machine(tmp_path / "machine", ssh_key) as machine:
        yield machine


@pytest.mark.row(5, 22)
@pytest.mark.slow
def test_whatever_happens_in_whatever_order(machine: Machine, tmp_path: Path) -> None:
    workspace = Workspace.find(make_project(tmp_path / "template", [machine]))
    workspace.prepare()
    Jobs.machine, Jobs.template, Jobs.examples = machine, workspace.config, 0
    FOLLOWED.clear()
    limits = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        database=None,
        # Making a failure smaller would take minutes.
        phases=[Phase.generate],
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Jobs, settings=limits)
    record_figure("states of jobs in any order: examples, steps", f"{Jobs.examples}, {sum(FOLLOWED.values())}")
    record_figure("states of jobs in any order: rules", ", ".join(f"{name} {n}" for name, n in FOLLOWED.most_common()))
