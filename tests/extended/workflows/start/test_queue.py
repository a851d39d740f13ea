"""Jobs that wait for GPUs and for other jobs, as this side sees them: real servers, stand-ins for nvidia-smi."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool import FanOutRequest, Hooks, JobSelection, JobState, LaunchRequest, StartRequest, Workspace
from remote_tool.errors import JobError, UsageError
from remote_tool.workflows.events import Notice
from remote_tool.workflows.fan_out.observer import Observer
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.events import Event
    from remote_tool.workflows.fan_out.plan import FanOutPlan
    from tests.sshd import TestServer

SHOW = 'echo "$CUDA_VISIBLE_DEVICES"'
SECONDS = 300.0


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what must come true; fail when it does not."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS:.0f} seconds: {what}"
        time.sleep(0.05)


class Queues:
    """Two servers with GPUs, and what a test started there."""

    def __init__(self, root: Path, servers: tuple[TestServer, TestServer], go: Path) -> None:
        self.told: list[Event] = []
        self.workspace = Workspace.find(root, hooks=Hooks(report=self.told.append))
        self.servers = {server.name: server for server in servers}
        self.go = go
        # Jobs that run until the test lets them go.
        self.holds = f"until test -e {go}; do sleep 0.05; done"

    def put_gpus(self, **counts: int) -> None:
        """Give each server this many idle GPUs."""
        for name, server in self.servers.items():
            lines = [gpu_line(index, load=0, used=1) for index in range(counts[name])]
            put_nvidia_smi(server.programs, *lines)

    def start(self, server: str, command: str, **options: object) -> Job:
        """Start one job; nothing of the project is needed."""
        request = StartRequest(command, (server,) if server else (), sync=False, **options)  # type: ignore[arg-type]
        (job,) = self.workspace.start_jobs(request).jobs
        return job

    def is_queued(self, job: Job) -> bool:
        """Wait until a job is in the queue: a slow server may answer its start before."""
        until(lambda: self.now(job).state is not JobState.STARTING, f"job {job.key} is known to its server")
        return self.now(job).state is JobState.QUEUED

    def hold(self, server: str, gpus: int = 1) -> Job:
        """Start a job that keeps GPUs until the test lets it go."""
        job = self.start(server, self.holds, gpus=gpus)
        until(lambda: self.now(job).state not in {JobState.STARTING, JobState.QUEUED}, f"job {job.key} runs")
        held = self.now(job)
        assert held.state is JobState.RUNNING, held.reason
        return held

    def now(self, job: Job) -> Job:
        """Return a job as its server has it."""
        (found,) = self.workspace.list_jobs(JobSelection(jobs=(job.id,))).jobs
        return found

    def wait(self, *jobs: Job) -> list[JobState]:
        """Return how jobs ended."""
        answer = self.workspace.wait_jobs(JobSelection(jobs=tuple(job.id for job in jobs)), timeout=SECONDS)
        ends = {job.id: job.state for job in answer.jobs}
        return [ends[job.id] for job in jobs]

    def output(self, job: Job) -> str:
        """Return what a job printed."""
        self.workspace.list_jobs(JobSelection(jobs=(job.id,)), logs=True)
        return (self.workspace.config.local.jobs / job.id / "job.out").read_text()

    def notices(self) -> list[str]:
        """Return what was reported."""
        return [event.text for event in list(self.told) if isinstance(event, Notice)]


@pytest.fixture
def queues(shared_project: Path, shared_servers: tuple[TestServer, TestServer], tmp_path: Path) -> Iterator[Queues]:
    """The two servers, with one GPU each; afterwards nothing of the test is there."""
    found = Queues(shared_project, shared_servers, tmp_path / "go")
    found.put_gpus(first=1, second=1)
    before = {job.id for job in found.workspace.list_jobs().jobs}
    yield found
    found.go.touch()
    left = [job.id for job in found.workspace.list_jobs().jobs if job.id not in before]
    if left:
        found.workspace.stop_jobs(JobSelection(jobs=tuple(left)), signal="SIGKILL")
    for server in shared_servers:
        (server.programs / "nvidia-smi").unlink()


def test_a_job_waits_until_another_gives_its_gpu_back(queues: Queues) -> None:
    first = queues.hold("first")
    assert (first.gpu_count, first.leased_gpus) == (1, ("GPU-0",))
    second = queues.start("first", SHOW, gpus=1)
    assert queues.is_queued(second)
    listed = queues.workspace.list_jobs(JobSelection(states=(JobState.QUEUED,))).jobs
    assert [job.id for job in listed] == [second.id]
    assert "1st of 1 for 1 GPU" in listed[0].reason
    queues.go.touch()
    assert queues.wait(first, second) == [JobState.SUCCEEDED] * 2
    assert queues.output(second) == "GPU-0\n"


@pytest.mark.row(273)
def test_a_queued_job_that_is_stopped_leaves_the_queue(queues: Queues) -> None:
    first, second = queues.hold("first"), queues.start("first", "touch began", gpus=1)
    third = queues.start("first", "true", gpus=1)
    stopped = queues.workspace.stop_jobs(JobSelection(jobs=(second.id,)))
    assert not stopped.errors
    assert [(job.state, job.started_at) for job in stopped.jobs] == [(JobState.KILLED, None)]
    assert "before its command started" in stopped.jobs[0].reason
    until(lambda: "1st of 1" in queues.now(third).reason, "the third job is the first of the queue")
    queues.go.touch()
    assert queues.wait(first, second, third) == [JobState.SUCCEEDED, JobState.KILLED, JobState.SUCCEEDED]


@pytest.mark.row(274)
def test_following_a_queued_job_says_what_it_waits_for_and_when_it_starts(queues: Queues) -> None:
    first, second = queues.hold("first"), queues.start("first", "true", gpus=1)
    third = queues.start("first", "echo done", gpus=1)
    shown: list[bytes] = []
    follower = threading.Thread(
        target=lambda: queues.workspace.follow_jobs(
            JobSelection(jobs=(third.id,)), lambda chunk: shown.append(chunk.data)
        )
    )
    follower.start()
    try:
        until(
            lambda: any(f"job {third.key} is queued: 2nd of 2" in text for text in queues.notices()),
            "its place is told",
        )
        queues.workspace.stop_jobs(JobSelection(jobs=(second.id,)))
        until(lambda: any(f"job {third.key} is queued: 1st of 1" in text for text in queues.notices()), "its new place")
    finally:
        queues.go.touch()
        follower.join(SECONDS)
    assert not follower.is_alive()
    assert b"".join(shown) == b"done\n"
    assert queues.wait(first, third) == [JobState.SUCCEEDED] * 2


@pytest.mark.row(278)
def test_a_job_waits_for_the_end_of_another_on_its_server(queues: Queues) -> None:
    first = queues.start("second", queues.holds)
    then, anyhow = (
        queues.start("", "true", after=(str(first.key),)),
        queues.start("second", "true", after=(first.id,), after_any=True),
    )
    assert (then.server, then.after) == ("second", (first.id,))
    assert queues.is_queued(then)
    assert queues.is_queued(anyhow)
    queues.workspace.stop_jobs(JobSelection(jobs=(first.id,)))
    assert queues.wait(then, anyhow) == [JobState.FAILED, JobState.SUCCEEDED]
    with pytest.raises(UsageError, match=f"Job {first.key} is on second, so a job on first cannot wait for it"):
        queues.start("first", "true", after=(first.id,))


@pytest.mark.row(277)
def test_a_job_for_any_server_gets_the_one_with_free_gpus(queues: Queues) -> None:
    queues.put_gpus(first=2, second=1)
    queues.hold("first", 2)
    request = StartRequest("true", sync=False, gpus=1, any_server=True)
    (quick,) = queues.workspace.start_jobs(request).jobs
    assert quick.server == "second"
    assert queues.wait(quick) == [JobState.SUCCEEDED]
    large = StartRequest("true", sync=False, gpus=2, any_server=True)
    (waiting,) = queues.workspace.start_jobs(large).jobs
    assert waiting.server == "first"
    assert queues.is_queued(waiting)
    queues.hold("second")
    # On the first, a job for two GPUs waits already: this one would be behind it.
    assert queues.workspace.start_jobs(request).jobs[0].server == "second"
    with pytest.raises(JobError, match="No server has 3 GPUs for jobs"):
        queues.workspace.start_jobs(StartRequest("true", sync=False, gpus=3, any_server=True))


@pytest.mark.row(275)
def test_a_launch_starts_nothing_unless_all_its_gpus_are_free(queues: Queues) -> None:
    held = queues.hold("second")
    request = LaunchRequest(SHOW, launcher="shell", sync=False, gpus=1)
    before = len(queues.workspace.list_jobs(JobSelection(stopped=True)).jobs)
    answer = queues.workspace.launch(request, check=False)
    assert [str(error) for error in answer.errors.values()] == [
        "second: 1 wanted; 0 of 1 free, 1 reserved by jobs; nothing was started"
    ]
    assert len(queues.workspace.list_jobs(JobSelection(stopped=True)).jobs) == before
    queues.go.touch()
    assert queues.wait(held) == [JobState.SUCCEEDED]
    jobs = queues.workspace.launch(request).jobs
    assert queues.wait(*jobs) == [JobState.SUCCEEDED] * 2
    assert [queues.output(job) for job in jobs] == ["GPU-0\n"] * 2


@pytest.mark.row(276)
def test_a_launch_that_waits_starts_when_all_its_gpus_are_free(queues: Queues) -> None:
    queues.hold("second")
    request = LaunchRequest("true", launcher="shell", sync=False, gpus=1, wait=True)
    jobs: list[Job] = []
    launching = threading.Thread(target=lambda: jobs.extend(queues.workspace.launch(request).jobs))
    launching.start()
    try:
        until(lambda: any("the launch waits: second: 1 wanted" in text for text in queues.notices()), "it says so")
        assert jobs == []
    finally:
        queues.go.touch()
        launching.join(SECONDS)
    assert not launching.is_alive()
    assert queues.wait(*jobs) == [JobState.SUCCEEDED] * 2


def test_a_launch_that_wants_more_gpus_than_there_are_does_not_wait(queues: Queues) -> None:
    request = LaunchRequest("true", launcher="shell", sync=False, gpus=2, wait=True)
    answer = queues.workspace.launch(request, check=False)
    assert [str(error) for error in answer.errors.values()] == [
        f"{server}: 2 GPUs wanted, and there is 1; nothing was started" for server in ("first", "second")
    ]


@pytest.mark.row(280)
def test_the_jobs_of_a_fan_out_reserve_their_gpus(queues: Queues) -> None:
    queues.put_gpus(first=2, second=1)
    request = FanOutRequest(SHOW, total=4, sync=False, gpus=1)
    assert [slot.server for slot in queues.workspace.plan_fan_out(request).slots] == ["first", "first", "second"]
    held = queues.hold("first", 2)
    answer = queues.workspace.fan_out(request, follow=False)
    assert [queues.is_queued(job) for job in answer.jobs if job.server == "first"] == [True, True]
    queues.go.touch()
    assert queues.wait(held, *answer.jobs) == [JobState.SUCCEEDED] * 4
    shown = sorted((job.server, queues.output(job)) for job in answer.jobs)
    assert {server for server, _ in shown} == {"first", "second"}
    assert all(text in {"GPU-0\n", "GPU-1\n"} for _, text in shown)


@pytest.mark.row(280)
def test_a_resumed_fan_out_reserves_as_many_gpus_as_before(queues: Queues) -> None:
    queues.put_gpus(first=2, second=2)
    plans: list[FanOutPlan] = []
    observer = Observer(plans.append)
    request = FanOutRequest(f"test -e {queues.go} && {SHOW}", total=2, sync=False, gpus=2, retries=0)
    answer = queues.workspace.fan_out(request, observer=observer, check=False)
    assert len(answer.failed) == 2
    queues.go.touch()
    again = queues.workspace.resume_fan_out(answer.launch_id, sync=False, observer=observer)
    assert plans[1].slots == plans[0].slots
    assert [queues.output(job) for job in again.jobs if job.state is JobState.SUCCEEDED] == ["GPU-0,GPU-1\n"] * 2


@pytest.mark.row(279)
def test_a_job_that_reserves_no_gpus_starts_with_a_warning_where_others_have(queues: Queues) -> None:
    held = queues.hold("first")
    for number, options in enumerate(({"devices": ("GPU-0",)}, {"devices": (0,)})):
        answer = queues.workspace.start_jobs(StartRequest("true", sync=False, **options))  # type: ignore[arg-type]
        ((server, text),) = answer.warnings
        assert (server, sum("are reserved" in each for each in queues.notices())) == ("first", number + 1)
        assert text.startswith("GPUs that these jobs may use are reserved: 1 is leased by ")
        assert queues.wait(*answer.jobs) == [JobState.SUCCEEDED] * 2
    # Servers of tests show no GPUs to jobs, unless they are named; and number 1 is another one.
    queues.put_gpus(first=2, second=1)
    for unaffected in (StartRequest("true", sync=False), StartRequest("true", sync=False, devices=(1,))):
        assert queues.workspace.start_jobs(unaffected).warnings == ()
    launch = LaunchRequest("true", launcher="shell", sync=False, environment={"CUDA_VISIBLE_DEVICES": "GPU-0"})
    assert [server for server, _ in queues.workspace.launch(launch).warnings] == ["first"]
    queues.go.touch()
    assert queues.wait(held) == [JobState.SUCCEEDED]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"gpus": -1}, "--gpus must be a whole number from 0 to 1024, found -1"),
        ({"gpus": True}, "--gpus must be a whole number from 0 to 1024, found True"),
        ({"gpus": 1, "priority": 101}, "--priority must be a whole number from 0 to 100, found 101"),
        ({"gpus": 1, "devices": (0,)}, "--gpus and --devices cannot be combined"),
        ({"gpus": 1, "env": {"CUDA_VISIBLE_DEVICES": "0"}}, "--gpus and --env CUDA_VISIBLE_DEVICES cannot be combined"),
        ({"priority": 3}, "--priority is for jobs that wait for GPUs"),
        ({"after": ("1",), "backfill": True}, "--backfill is for jobs that wait for GPUs"),
        ({"after": ("1",) * 101}, "--after is given 101 times; at most 100 are possible"),
        ({"any_server": True}, "--any-server needs --gpus"),
        ({"any_server": True, "gpus": 1, "after": ("1",)}, "--any-server cannot be combined with --after"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        StartRequest("true", **options)
    assert raised.value.message == problem


@pytest.mark.parametrize("option", ["priority", "after", "backfill"])
def test_launches_and_fan_outs_have_no_place_in_a_queue_of_their_own(option: str) -> None:
    value: Any = {"priority": 1, "after": ("1",), "backfill": True}[option]
    for kind in (LaunchRequest, FanOutRequest):
        with pytest.raises(UsageError, match=f"--{option} is only for job-run"):
            kind("true", gpus=1, **{option: value})
    with pytest.raises(UsageError, match="--wait is for launches that reserve GPUs"):
        LaunchRequest("true", wait=True)
