"""Checks: their results, their hints, and the server that differs from the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.config.environment import Environment, EnvironmentKind
from remote_tool.environments.activation import Activation
from remote_tool.environments.checks.agreement import Clock, check_clocks, compare
from remote_tool.environments.checks.checks import Check, ServerInspection, Status, check_server
from remote_tool.environments.checks.gpu_facts import Gpu, GpuReport, NvidiaSmiStatus
from remote_tool.environments.checks.machine import Disk, Machine, TorchBuild
from remote_tool.environments.facts import Interpreter, ServerFacts
from tests.extended.environments.test_facts import config_for

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024 * 1024
H100 = Gpu("NVIDIA H100", 81920, 0, 0)
ANSWERED = GpuReport(NvidiaSmiStatus.ANSWERED, gpus=(H100, H100), driver="550.54.15", cuda="12.4")
FACTS = ServerFacts(
    "gpu1",
    "/home/me",
    "x86_64",
    "Linux",
    1000,
    username="me",
    distribution="ubuntu debian",
    free_kilobytes=500 * GIB,
    rsync="/usr/bin/rsync",
    rsync_version="rsync  version 3.2.7  protocol version 31",
    activation=Activation("venv", "/e", "/e/bin/python", "3.11.7"),
    environment_python="3.11.7",
    has_supervisor=True,
)
MACHINE = Machine(
    hostname="gpu1",
    cores=64,
    memory_kilobytes=256 * GIB,
    free_memory_kilobytes=200 * GIB,
    shared_memory_kilobytes=128 * GIB,
    disks=(Disk("nvme0n1", is_rotational=False),),
    open_files=1024,
    most_open_files=1048576,
    names={"gpu1": ("10.0.0.5",)},
    torch=TorchBuild("2.5.1", "12.4"),
    nccl="2.21.5",
    gpus=ANSWERED,
)


def found(
    tmp_path: Path, name: str, *, facts: dict[str, Any] | None = None, machine: dict[str, Any] | None = None
) -> Check:
    """Return one check of a server that is fit but for what is given."""
    config = config_for(tmp_path, environment=Environment(EnvironmentKind.VENV), python="3.11")
    examined = ServerInspection(config, replace(FACTS, **facts or {}), replace(MACHINE, **machine or {}), ("gpu2",))
    return next(check for check in check_server(examined) if check.name == name)


def test_a_fit_server_has_nothing_to_mend(tmp_path: Path) -> None:
    config = config_for(tmp_path, environment=Environment(EnvironmentKind.VENV))
    checks = check_server(ServerInspection(config, FACTS, MACHINE))
    assert {check.status for check in checks} == {Status.OK}
    assert not any(check.hint for check in checks)


@pytest.mark.parametrize(
    ("name", "facts", "status", "value", "hint"),
    [
        ("rsync", {"rsync": ""}, "fail", "not installed", "sudo apt-get install rsync"),
        ("rsync", {"rsync_version": "openrsync: protocol version 29"}, "ok", "openrsync, none here", ""),
        ("environment", {"activation": None, "pythons": (Interpreter("/usr/bin/python3.11", "3.11.2", True),)},
            "fail", "not prepared", "remote-tool prepare --server gpu1"),
        ("environment", {"activation": None}, "fail", "has no Python", "sudo apt-get install python3"),
        ("environment", {"has_supervisor": False}, "fail", "another version", "remote-tool prepare --server gpu1"),
        ("environment", {"bad_folders": ("link:project/.remote-scripts",)}, "fail", "a symbolic link", "rm ~/project"),
        ("disk", {"free_kilobytes": 9 * GIB}, "warn", "9.0 GiB free", "du "),
        ("disk", {"free_kilobytes": GIB // 2}, "fail", "512.0 MiB free", "du "),
        ("logout", {"ends_sessions": True}, "fail", "KillUserProcesses", "KillExcludeUsers=me"),
    ],
)  # fmt: skip
def test_what_prepare_would_know(
    tmp_path: Path, name: str, facts: dict[str, Any], status: str, value: str, hint: str
) -> None:
    check = found(tmp_path, name, facts=facts)
    assert (check.status, value in check.value, hint in check.hint) == (status, True, True), check


@pytest.mark.parametrize(
    ("name", "machine", "status", "value", "hint"),
    [
        ("torch", {"torch": None}, "ok", "not installed", ""),
        ("cuda", {"torch": TorchBuild("2.9.0", "13.0")},
            "fail", "driver supports 12.4, torch is built for 13.0", "CUDA 12.4"),
        ("cuda", {"torch": TorchBuild("2.7.0", "12.8")}, "warn", "torch is built for 12.8", "CUDA 12.4"),
        ("cuda", {"torch": TorchBuild("2.3.0", "12.1")}, "ok", "torch is built for 12.1", ""),
        ("cuda", {"torch": TorchBuild("2.3.0+cpu")}, "fail", "built without", "update-packages"),
        ("cuda", {"torch": None}, "ok", "up to 12.4", ""),
        ("nccl", {"nccl": ""}, "unknown", "torch's own", ""),
        ("gpus", {"gpus": GpuReport()}, "ok", "none", ""),
        ("gpus", {"gpus": GpuReport(NvidiaSmiStatus.NO_DRIVER)}, "fail", "no nvidia-smi", "driver"),
        ("gpus", {"gpus": GpuReport(NvidiaSmiStatus.SILENT)}, "fail", "does not answer", "reboot"),
        ("gpus", {"gpus": GpuReport(NvidiaSmiStatus.FAILED, "library version mismatch")}, "fail", "mismatch", "Xid"),
        ("gpus", {"gpus": replace(ANSWERED, gpus=(H100, Gpu("NVIDIA L4", 23034, 0, 0)))},
            "warn", "1 x NVIDIA H100, 80 GiB; 1 x NVIDIA L4, 22 GiB", "--devices"),
        ("gpus", {"gpus": replace(ANSWERED, parts=7)}, "ok", "2 x NVIDIA H100, 80 GiB, 7 MIG parts", ""),
        ("gpu use", {"gpus": replace(ANSWERED, processes=(("me", 2), ("alice", 1)))},
            "warn", "processes: 2 of me, 1 of alice", "nvidia-smi"),
        ("gpu use", {"gpus": replace(ANSWERED, gpus=(replace(H100, load=97),))},
            "warn", "up to 97 % busy", "nvidia-smi"),
        ("disk", {"disks": (Disk("sda", is_rotational=True),)}, "warn", "hard disk sda", "slow"),
        ("disk", {"disks": (), "disk_kind": "nfs"}, "ok", "nfs", ""),
        ("shared memory", {"shared_memory_kilobytes": 65536}, "warn", "64.0 MiB free", "--shm-size"),
        ("shared memory", {"shared_memory_kilobytes": None}, "unknown", "unknown", ""),
        ("open files", {"open_files": 256}, "warn", "256", "ulimit -n"),
        ("logout", {"removes_shared_memory": True}, "warn", "RemoveIPC", "sudo loginctl enable-linger"),
        ("names", {"names": {"gpu1": ("127.0.1.1",)}}, "warn", "gpu1 resolves to 127.0.1.1", "/etc/hosts"),
        ("names", {"names": {"gpu1": ()}}, "warn", "cannot resolve its own name", "/etc/hosts"),
        ("names", {"names": {"gpu1": ("10.0.0.5",), "gpu2": ()}}, "fail", "cannot resolve gpu2", "address:"),
        ("names", {"names": {}}, "unknown", "unknown", ""),
    ],
)  # fmt: skip
def test_what_a_machine_tells(
    tmp_path: Path, name: str, machine: dict[str, Any], status: str, value: str, hint: str
) -> None:
    check = found(tmp_path, name, machine=machine)
    assert (check.status, value in check.value, hint in check.hint) == (status, True, True), check


def verdicts(name: str, *values: str) -> list[Status]:
    checks = {f"gpu{number}": [Check(name, Status.OK, value)] for number, value in enumerate(values, 1)}
    return [own[0].status for own in compare(checks).values()]


def test_the_server_that_differs_is_the_one_to_mend() -> None:
    ok, fail, warn = Status.OK, Status.FAIL, Status.WARN
    assert verdicts("torch", "2.5.1", "2.5.1", "2.4.0") == [ok, ok, fail]
    assert verdicts("torch", "2.4.0", "2.5.1", "2.5.1") == [fail, ok, ok]
    assert verdicts("torch", "2.5.1", "2.4.0") == [ok, fail]
    assert verdicts("python", "3.11.7", "3.11.2", "3.10.1") == [ok, ok, fail]
    assert verdicts("nccl", "2.21.5", "2.20.5") == [ok, fail]
    assert verdicts("driver", "550.54.15", "535.1") == [ok, warn]
    assert verdicts("cores", "8", "64") == [ok, ok]


def test_what_differs_says_what_the_others_have_and_what_to_type() -> None:
    checks = {name: [Check("torch", Status.OK, value)] for name, value in (("gpu1", "2.5.1"), ("gpu2", "2.4.0"))}
    (other,) = compare(checks)["gpu2"]
    assert other.value == "2.4.0; others: 2.5.1"
    assert other.hint == "remote-tool update-packages --force --server gpu2"


def clocks(*offsets: float | None) -> list[Status]:
    known = {str(number): None if each is None else Clock(each, 0.1) for number, each in enumerate(offsets)}
    return [check.status for check in check_clocks(known).values()]


def test_a_clock_is_set_against_ours_and_against_those_of_the_others() -> None:
    ok, warn, fail = Status.OK, Status.WARN, Status.FAIL
    assert clocks(0.0, -1.0) == [ok, ok]
    assert clocks(0.0, 5.0) == [ok, warn]
    assert clocks(0.0, -3600.0) == [ok, fail]
    assert clocks(None, 0.0) == [Status.UNKNOWN, ok]
    assert clocks(7200.0, 7200.5) == [warn, warn], "it is our clock that differs"
    (check,) = check_clocks({"gpu1": Clock(-3600.0, 0.1)}).values()
    assert (check.value, check.hint) == ("60 min behind this computer's", "sudo chronyc makestep")


def test_doubt_is_no_skew() -> None:
    """A slow link tells a clock late."""
    (check,) = check_clocks({"gpu1": Clock(70.0, 69.0)}).values()
    assert check.status is Status.OK
