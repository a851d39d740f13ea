"""check, on real servers: what they have, where they differ, and servers that cannot be reached or do not answer."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from remote_tool import Workspace
from remote_tool.environments.checks.checks import Status
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.servers.check import CheckAnswer, check
from tests.extended.environments.test_facts import stub
from tests.extended.environments.test_machine import CSV, answering
from tests.project import make_project
from tests.sshd import make_key

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.environments.checks.checks import Check
    from tests.conftest import MakeServer
    from tests.sshd import TestServer


def by_name(answer: CheckAnswer, server: str) -> dict[str, Check]:
    return {check.name: check for report in answer.servers if report.name == server for check in report.checks}


@pytest.fixture
def bare(two_servers: tuple[TestServer, TestServer], tmp_path: Path) -> Workspace:
    """Two servers on which nothing of ours was ever done."""
    return Workspace.find(make_project(tmp_path / "project", two_servers))


def own_environment(server: TestServer, torch: str, cuda: str = "'12.4'") -> None:
    """Give a server an environment in its home, with a torch of which only the version is there."""
    site = server.home / "env" / "lib" / "python3.11" / "site-packages" / "torch"
    site.mkdir(parents=True)
    (site / "version.py").write_text(f"__version__ = '{torch}'\ncuda = {cuda}\n")
    stub(server.home / "env" / "bin", "python", "echo 3.11.2 1")


def test_an_unprepared_server_is_checked_and_left_unchanged(
    bare: Workspace, two_servers: tuple[TestServer, TestServer]
) -> None:
    answer = bare.check()
    assert (answer.errors, answer.is_fit, answer.exit_code) == ({}, False, 1)
    for server in two_servers:
        found = by_name(answer, server.name)
        assert found["login"].value == f"{server.username}, ed25519 key"
        assert (found["host key"].status, found["host key"].value[:24]) == (Status.WARN, "new: ed25519 key SHA256:")
        assert found["clock"].status is Status.OK
        assert (found["environment"].status, found["environment"].value) == (Status.FAIL, "not prepared")
        assert found["environment"].hint == f"remote-tool prepare --server {server.name}"
        assert list(server.home.iterdir()) == []
    assert by_name(bare.check(), "first")["host key"].value == "known (ed25519)"


@pytest.mark.slow
def test_a_prepared_server_is_fit(workspace: Workspace) -> None:
    found = by_name(workspace.check(), "first")
    assert {name: found[name].status for name in ("environment", "python", "rsync", "torch")} == dict.fromkeys(
        ("environment", "python", "rsync", "torch"), Status.OK
    )
    version = subprocess.run(["rsync", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    assert found["rsync"].value == f"{version}, {version} here"


def test_servers_are_compared(two_servers: tuple[TestServer, TestServer], tmp_path: Path) -> None:
    """Two versions of torch, and two kinds of GPUs."""
    for server, torch in zip(two_servers, ("2.5.1", "2.4.0"), strict=True):
        own_environment(server, torch)
    stub(two_servers[0].programs, "nvidia-smi", answering())
    stub(
        two_servers[1].programs,
        "nvidia-smi",
        answering(csv=f"{CSV.replace('H100', 'A100')}\n{CSV.replace('H100', 'L4')}"),
    )
    root = make_project(tmp_path / "project", two_servers, environment={"existing": "~/env"})
    answer = Workspace.find(root).check()
    first, second = by_name(answer, "first"), by_name(answer, "second")
    assert (first["torch"].status, first["torch"].value) == (Status.OK, "2.5.1 (CUDA 12.4)")
    assert (second["torch"].status, second["torch"].value) == (
        Status.FAIL,
        "2.4.0 (CUDA 12.4); others: 2.5.1 (CUDA 12.4)",
    )
    assert first["gpus"].value == "1 x NVIDIA H100 80GB HBM3, 80 GiB"
    assert second["gpus"].status is Status.WARN
    assert first["cuda"].value == "driver supports 12.4, torch is built for 12.4"


@pytest.mark.slow
async def test_an_nvidia_smi_that_hangs_is_a_failed_check_of_its_server(
    bare: Workspace, two_servers: tuple[TestServer, TestServer]
) -> None:
    stub(two_servers[0].programs, "nvidia-smi", "sleep 60")
    stub(two_servers[1].programs, "nvidia-smi", answering())
    async with HostPool(bare.config) as pool:
        answer = await check(pool, bare.config, gpu_seconds=15.0)
    hanging, other = by_name(answer, "first"), by_name(answer, "second")
    assert (hanging["gpus"].status, hanging["gpus"].value) == (Status.FAIL, "nvidia-smi does not answer")
    assert other["driver"].value == "550.54.15"
    assert hanging["cores"].status is Status.OK


@pytest.mark.slow
async def test_a_program_that_ignores_signals_is_awaited_within_a_bound(
    bare: Workspace, two_servers: tuple[TestServer, TestServer]
) -> None:
    """As a driver that hangs in the kernel: everything that was told before counts."""
    stub(two_servers[0].programs, "nvidia-smi", "setsid sleep 60 & sleep 60")
    began = time.monotonic()
    async with HostPool(bare.config) as pool:
        answer = await check(pool, bare.config, ["first"], gpu_seconds=0.1)
    assert time.monotonic() - began < 50
    assert by_name(answer, "first")["gpus"].value == "nvidia-smi does not answer"
    assert by_name(answer, "first")["memory"].status is Status.OK


@pytest.mark.slow
async def test_a_server_that_stops_in_the_middle_is_an_error_and_no_bug(
    bare: Workspace, two_servers: tuple[TestServer, TestServer]
) -> None:
    """A df on a dead network disk."""
    stub(two_servers[0].programs, "df", "sleep 60")
    async with HostPool(bare.config) as pool:
        answer = await check(pool, bare.config, gpu_seconds=0.1)
    assert "did not answer" in str(answer.errors["first"])
    assert by_name(answer, "first")["connection"].status is Status.FAIL
    assert "second" not in answer.errors
    assert answer.exit_code == 3


def test_a_server_without_connection_or_login_is_a_failed_check(
    make_server: MakeServer, tmp_path: Path, two_servers: tuple[TestServer, TestServer]
) -> None:
    first, second = two_servers
    closed, changed = make_server("closed"), make_server("changed")
    root = make_project(tmp_path / "project", [first, second, closed, changed])
    workspace = Workspace.find(root)
    workspace.check()
    (closed.folder / "authorized_keys").write_text("")
    changed.stop()
    changed.host_key.unlink()
    changed.host_key.with_suffix(".pub").unlink()
    make_key(changed.host_key)
    changed.start()
    second.stop()
    answer = workspace.check()
    assert (list(answer.errors), answer.exit_code) == (["second", "closed", "changed"], 3)
    for server, name, reason in (
        ("second", "connection", "refused the connection"),
        ("closed", "login", "Cannot log in"),
        ("changed", "host key", "has changed"),
    ):
        failed = by_name(answer, server)[name]
        assert failed.status is Status.FAIL
        assert reason in failed.value
        assert failed.hint


@pytest.mark.slow
def test_a_server_whose_answer_is_noise_is_an_error(make_server: MakeServer, tmp_path: Path) -> None:
    """What it sends is no answer of ours."""
    noise = make_server("noise", ForceCommand="head -c 300000 /dev/urandom")
    fine = make_server("fine")
    answer = Workspace.find(make_project(tmp_path / "project", [noise, fine])).check()
    assert list(answer.errors) == ["noise"]
    assert answer.exit_code == 3
