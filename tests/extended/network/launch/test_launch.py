"""A launch over machines of their own: when one of them is gone the rest stops, and it comes back when it does."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, Workspace
from remote_tool.jobs.job import JobState
from remote_tool.launchers.request import LaunchRequest
from tests.below import contents_below
from tests.figures import record_figure
from tests.project import make_project

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remote_tool.workflows.jobs.follow import Chunk, FollowAnswer
    from tests.network_hosts import Network, NetworkHost

# To import torch may take a minute on a busy machine.
SAMPLE = Path(__file__).parents[4] / "sample" / "train_digits.py"
# What is promised, from the death of a node to the end of the launch; of one that is merely silent after lost_after.
BOUND = 15.0
LOST_AFTER = 6.0
# Of a machine that does other things too; without the promise it is minutes.
SLACK = 10.0
# Longer than a node whose connection was closed is waited for.
CUT = 10.0
PATIENCE = 300.0
FOR_EVER = """
import time
from collections import defaultdict
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100_000):
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
    time.sleep(0.2)
"""


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds:.0f} s"
        time.sleep(0.02)


def jobs_folder(host: NetworkHost) -> Path:
    return host.home / "project" / ".jobs"


def has_trained(host: NetworkHost, word: bytes = b"step 3\n") -> bool:
    """Whether a rank of the host's jobs has printed this."""
    return any(word in text for file, text in contents_below(jobs_folder(host)) if file.name == "stdout.log")


# All ranks have met when one fails, so the next attempt finds what this one left in the store.
FAILS_AT_FIRST = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
failures = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["REMOTE_TOOL_SERVER"] == os.environ["FAILING"] and failures < 2:
    raise ValueError("bad batch")
dist.barrier()
print("sum", float(value))
dist.destroy_process_group()
"""


def has_ended(host: NetworkHost) -> bool:
    return bool(list(jobs_folder(host).glob("*/ended.json")))


def prepare(network: Network, tmp_path: Path, *names: str, **settings: object) -> tuple[Workspace, list[NetworkHost]]:
    hosts = network.hosts(*names)
    root = make_project(tmp_path / "project", hosts, **settings)
    (root / "for_ever.py").write_text(FOR_EVER)
    workspace = Workspace.find(root)
    workspace.prepare()
    return workspace, hosts


def pull_the_cable(host: NetworkHost) -> None:
    host.cut()


def kill_everything(host: NetworkHost) -> None:
    host.signal_all(signal.SIGKILL)


def stop_everything(host: NetworkHost) -> None:
    """As a machine does that hangs."""
    host.signal_all(signal.SIGSTOP)


def take_the_power(host: NetworkHost) -> None:
    host.power_off()


@pytest.mark.row(88, 89)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("happens", "to", "lost_after"),
    [
        (take_the_power, 1, LOST_AFTER),
        (take_the_power, 0, LOST_AFTER),
        (pull_the_cable, 1, LOST_AFTER),
        (stop_everything, 1, LOST_AFTER),
        # Its connections are closed, so that nobody waits for it.
        (kill_everything, 1, None),
    ],
)
def test_without_a_laptop_the_rest_of_a_launch_ends_within_15_seconds(
    network: Network, tmp_path: Path, happens: Callable[[NetworkHost], None], to: int, lost_after: float | None
) -> None:
    workspace, hosts = prepare(network, tmp_path, "first", "second")
    workspace.launch(LaunchRequest("for_ever.py", lost_after=lost_after))
    wait_until(lambda: all(has_trained(host) for host in hosts), "the training")
    victim, survivor = hosts[to], hosts[1 - to]
    began = time.monotonic()
    happens(victim)
    wait_until(lambda: has_ended(survivor), "the end of the rest")
    seconds = time.monotonic() - began
    record_figure("a node's death to the launch's end (s)", round(seconds, 1))
    assert seconds < BOUND + (lost_after or 0) + SLACK
    # Not even a supervisor stays for long, and no rank.
    wait_until(lambda: not survivor.pids(), "the end of its processes")
    listed = workspace.list_jobs(JobSelection(servers=(survivor.name,), stopped=True)).jobs
    (job,) = [job for job in listed if job.server == survivor.name]
    assert job.state is JobState.FAILED
    if happens is not kill_everything:
        assert f"stopped because {victim.name} (node {to}) has not responded" in job.reason
        assert job.lost_node == to
    else:
        # Its connections were closed at once, so torch may have been the first to notice.
        assert f"{victim.name} (node {to}) has not responded" in job.reason


@pytest.mark.row(88)
@pytest.mark.slow
def test_nodes_that_no_longer_reach_each_other_both_stop_and_the_laptop_sees_why(
    network: Network, tmp_path: Path
) -> None:
    workspace, (first, second) = prepare(network, tmp_path, "first", "second", lost_after=int(LOST_AFTER))
    request = LaunchRequest("for_ever.py")
    answer = workspace.launch(request)
    wait_until(lambda: has_trained(second), "the training")
    first.cut_from(second)
    followed = workspace.follow_launch(request, answer.jobs, lambda _chunk: None)
    assert [job.state for job in followed.jobs] == [JobState.FAILED] * 2
    assert "stopped because second (node 1) has not responded" in followed.jobs[0].reason
    assert "stopped because first (node 0) has not responded" in followed.jobs[1].reason
    assert followed.first_failure is not None
    assert followed.first_failure.server == "second"
    assert followed.exit_code != 0


def steps(host: NetworkHost) -> int:
    """How many steps the host's ranks have printed."""
    files = contents_below(jobs_folder(host))
    return sum(text.count(b"step ") for file, text in files if file.name == "stdout.log")


@pytest.mark.row(158)
@pytest.mark.slow
def test_a_training_goes_on_when_its_link_is_back_within_lost_after(network: Network, tmp_path: Path) -> None:
    workspace, hosts = prepare(network, tmp_path, "first", "second")
    workspace.launch(LaunchRequest("for_ever.py"))
    wait_until(lambda: all(has_trained(host) for host in hosts), "the training")
    hosts[1].cut()
    time.sleep(CUT)
    hosts[1].mend()
    done = [steps(host) for host in hosts]
    wait_until(lambda: all(steps(host) > done[rank] + 3 for rank, host in enumerate(hosts)), "the next steps")
    assert not any(has_ended(host) for host in hosts)


class Following:
    """A ``--follow`` on another thread."""

    def __init__(self, workspace: Workspace, request: LaunchRequest, jobs: Sequence[object]) -> None:
        self._outputs: defaultdict[tuple[str, str], bytes] = defaultdict(bytes)
        self.answer: FollowAnswer | None = None
        self._thread = threading.Thread(target=self._follow, args=(workspace, request, jobs))
        self._thread.start()

    def _follow(self, workspace: Workspace, request: LaunchRequest, jobs: Sequence[object]) -> None:
        self.answer = workspace.follow_launch(request, jobs, self._take)  # type: ignore[arg-type]

    def _take(self, chunk: Chunk) -> None:
        self._outputs[chunk.job.id, chunk.stream] += chunk.data

    @property
    def output(self) -> str:
        """What was printed, stream by stream: a line may come in pieces, with those of others between them."""
        return b"".join(self._outputs.values()).decode(errors="replace")

    def end(self, seconds: float) -> FollowAnswer:
        self._thread.join(seconds)
        assert self.answer is not None, self.output
        return self.answer


@pytest.mark.row(103)
@pytest.mark.slow
@pytest.mark.parametrize("failing", ["first", "second"])
def test_a_launch_with_restarts_recovers_when_a_rank_fails_twice_on_either_node(
    network: Network, tmp_path: Path, failing: str
) -> None:
    workspace, _ = prepare(network, tmp_path, "first", "second")
    (workspace.root / "fails.py").write_text(FAILS_AT_FIRST)
    request = LaunchRequest("fails.py", max_restarts=2, environment={"FAILING": failing})
    answer = workspace.launch(request)
    following = Following(workspace, request, answer.jobs)
    followed = following.end(PATIENCE)
    output = following.output
    assert followed.exit_code == 0, output
    # A rank whose peer has failed fails as well, so its node counts a failure too.
    assert [line for line in output.splitlines() if line.startswith("sum")] == ["sum 2.0"] * 2, output
    assert output.count("ValueError: bad batch") == 2, output


@pytest.mark.row(5, 88, 103)
@pytest.mark.slow
@pytest.mark.parametrize("rebooting", [0, 1])
def test_a_launch_with_restarts_resumes_from_its_checkpoint_when_a_server_rebooted(
    network: Network, tmp_path: Path, rebooting: int
) -> None:
    workspace, hosts = prepare(network, tmp_path, "first", "second")
    shutil.copy(SAMPLE, workspace.root)
    request = LaunchRequest("train_digits.py --epochs 40", max_restarts=2)
    answer = workspace.launch(request)
    following = Following(workspace, replace(request, sync=False), answer.jobs)
    wait_until(lambda: has_trained(hosts[0], b"epoch 3 "), "the training")
    began = time.monotonic()
    hosts[rebooting].reboot()
    followed = following.end(PATIENCE)
    record_figure("a node's reboot to the end of the resumed launch (s)", round(time.monotonic() - began, 1))
    output = following.output
    assert followed.exit_code == 0, output
    assert [job.state for job in followed.jobs] == [JobState.SUCCEEDED] * 2
    assert "resuming after epoch " in output
    # No epoch was trained twice but the one that was cut off, and none was left out.
    epochs = [int(line.split()[1]) for line in output.splitlines() if line.startswith("epoch ")]
    assert sorted(set(epochs)) == list(range(1, 41))
    assert len(epochs) <= 41
    assert "accuracy 9" in output
    states = {job.id: job.state for job in workspace.list_jobs(JobSelection(stopped=True)).jobs}
    lost = [states[job.id] for job in answer.jobs]
    assert lost[rebooting] is JobState.LOST
    assert lost[1 - rebooting] is JobState.FAILED
    wait_until(lambda: not any(host.pids() for host in hosts), "the end of all processes")
