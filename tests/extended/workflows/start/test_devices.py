"""Which GPUs a command sees on real servers: by the option, by the key, and never against a variable of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, LaunchRequest, StartRequest, Workspace
from remote_tool.errors import SomeServersFailedError, UsageError
from remote_tool.workflows.fan_out.request import FanOutRequest
from tests.project import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.transport.host import Stream
    from tests.sshd import TestServer

SHOW = 'echo "${CUDA_VISIBLE_DEVICES:-all} ${CUDA_DEVICE_ORDER-any}"'


@pytest.fixture
def half(shared_project: Path, shared_servers: tuple[TestServer, TestServer], tmp_path: Path) -> Workspace:
    """The prepared project, with the GPUs 2 and 5 of the first server."""
    root = make_project(tmp_path / "project", shared_servers)
    file = root / ".remote" / "configs.yaml"
    file.write_text(file.read_text().replace("  first:\n", "  first:\n    devices: [2, 5]\n"))
    (root / ".remote" / "known_hosts").write_bytes((shared_project / ".remote" / "known_hosts").read_bytes())
    return Workspace.find(root)


def shown(workspace: Workspace, *, env: dict[str, str] | None = None, devices: tuple[str | int, ...] = ()) -> list[str]:
    """Return what a command on both servers sees."""
    said: dict[str, bytes] = {}

    def take(server: str, _stream: Stream, data: bytes) -> None:
        said[server] = said.get(server, b"") + data

    workspace.run(SHOW, env=env, devices=devices, on_output=take)
    return [said[server].decode().strip() for server in ("first", "second")]


def test_a_command_sees_the_devices_that_are_chosen(half: Workspace) -> None:
    assert shown(half) == ["2,5 PCI_BUS_ID", "all any"]
    assert shown(half, devices=(0, 3)) == ["0,3 PCI_BUS_ID"] * 2
    assert shown(half, devices=("GPU-8932f937",)) == ["GPU-8932f937 any"] * 2
    assert shown(half, env={"CUDA_VISIBLE_DEVICES": "7"}) == ["7 any"] * 2


def test_the_option_does_not_change_a_variable_of_the_user(half: Workspace) -> None:
    with pytest.raises(UsageError, match="--devices and --env CUDA_VISIBLE_DEVICES cannot be combined"):
        half.run(SHOW, env={"CUDA_VISIBLE_DEVICES": "7"}, devices=(0,))


def test_jobs_see_their_devices(half: Workspace) -> None:
    requests = StartRequest(SHOW, sync=False), StartRequest(SHOW, ("second",), sync=False, devices=(1,))
    jobs = half.start_jobs(*requests).jobs
    one = half.start("second", SHOW, sync=False, devices=[4])
    assert list(one.tail()) == ["4 PCI_BUS_ID"]
    logs = half.config.local.jobs
    for job, expected in zip(jobs, ["2,5 PCI_BUS_ID", "all any", "1 PCI_BUS_ID"], strict=True):
        half.follow_jobs(JobSelection(jobs=(job.id,)), lambda _chunk: None)
        assert (logs / job.id / "job.out").read_text().strip() == expected


def test_the_gpus_that_a_job_was_given_are_recorded_here_and_on_its_server(half: Workspace) -> None:
    given = StartRequest("sleep 1000", sync=False), StartRequest("sleep 1000", ("second",), sync=False, devices=(1, 3))
    own = StartRequest("sleep 1000", ("second",), env={"CUDA_VISIBLE_DEVICES": "7"}, sync=False)
    jobs = half.start_jobs(*given, own).jobs
    expected = {job.id: gpus for job, gpus in zip(jobs, [("2", "5"), None, ("1", "3"), None], strict=True)}
    assert {job.id: job.gpus for job in jobs} == expected
    for job in jobs:
        (half.config.local.job(job.id) / "job.yaml").unlink()
    listed = {job.id: job.gpus for job in Workspace.find(half.root).list_jobs().jobs}
    assert {job_id: listed[job_id] for job_id in expected} == expected
    half.stop_jobs(JobSelection(jobs=tuple(expected)))


def test_a_job_of_a_fan_out_has_the_gpus_of_its_slot(half: Workspace) -> None:
    """They may be named in the variables of the configuration too, where no server has to have them."""
    file = half.config.local.config_file
    file.write_text(file.read_text() + "env: {CUDA_VISIBLE_DEVICES: '6,7'}\n")
    answer = Workspace.find(half.root).fan_out(FanOutRequest("true", ("second",), total=2))
    assert {job.node_rank: job.gpus for job in answer.jobs} == {0: ("6",), 1: ("7",)}


def test_devices_win_over_a_variable_of_the_configuration(half: Workspace) -> None:
    file = half.config.local.config_file
    file.write_text(file.read_text() + "env: {CUDA_VISIBLE_DEVICES: '6,7'}\n")
    workspace = Workspace.find(half.root)
    assert shown(workspace) == ["2,5 PCI_BUS_ID", "6,7 any"]
    assert shown(workspace, devices=(1,)) == ["1 PCI_BUS_ID"] * 2
    assert shown(workspace, env={"CUDA_VISIBLE_DEVICES": "3"}) == ["3 any"] * 2
    chosen, configured = (workspace.start("second", SHOW, sync=False, devices=devices) for devices in ((4,), ()))
    assert [list(chosen.tail()), list(configured.tail())] == [["4 PCI_BUS_ID"], ["6,7 any"]]
    slots = workspace.plan_fan_out(FanOutRequest("true", ("second",))).slots
    assert [slot.gpus for slot in slots] == [("6",), ("7",)]


def test_a_launch_or_fan_out_on_devices_that_are_not_there_is_refused(half: Workspace) -> None:
    """A launch would train on nothing, or fall back to the CPU. No machine that runs this has so many GPUs."""
    (half.root / "train.py").write_text("")
    for plan in (
        lambda: half.plan_torch(LaunchRequest("train.py", devices=("200",))),
        lambda: half.plan_fan_out(FanOutRequest("true", devices=("200",))),
    ):
        with pytest.raises(SomeServersFailedError) as caught:
            plan()
        said = {name: "200" in error.message for name, error in caught.value.failures.items()}
        assert said == {"first": True, "second": True}
