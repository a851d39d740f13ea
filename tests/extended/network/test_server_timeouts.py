"""Servers that close connections and sessions which say nothing for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectionLostError
from remote_tool.transport.pool import HostPool
from remote_tool.workflows.selection import JobSelection

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.workflows.jobs.follow import Chunk
    from tests.extended.configuration import Configuration
    from tests.extended.network.conftest import MakeWorkspace
    from tests.network_hosts import Network, NetworkHost


@pytest.fixture
def hasty(network: Network) -> NetworkHost:
    """A host whose sshd closes what says nothing for a while, which is longer than a busy machine is silent."""
    return make_hasty(network.host("first"), 4)


def make_hasty(host: NetworkHost, seconds: int) -> NetworkHost:
    host.options |= {"ChannelTimeout": f"session:*={seconds}", "UnusedConnectionTimeout": str(seconds)}
    try:
        host.reload_sshd()
    except RuntimeError:
        pytest.skip("this sshd has no ChannelTimeout; OpenSSH 9.2 has")
    return host


@pytest.mark.row(60)
@pytest.mark.slow
async def test_a_connection_that_the_server_closed_is_made_again_without_a_word(
    hasty: NetworkHost, configuration: Configuration, tmp_path: Path
) -> None:
    async with HostPool(configuration([hasty], tmp_path / "project")) as pool, asyncio.timeout(300):
        first = await pool.host("first")
        assert (await first.run("echo 1")).stdout == b"1\n"
        async with asyncio.timeout(300):
            while await pool.host("first") is first:  # noqa: ASYNC110 - the server tells nobody else
                await asyncio.sleep(0.1)
        assert (await (await pool.host("first")).run("echo 2")).stdout == b"2\n"


@pytest.mark.row(60, 36)
@pytest.mark.slow
async def test_a_silent_command_whose_session_the_server_closed_is_no_result_and_not_repeated(
    hasty: NetworkHost, configuration: Configuration, tmp_path: Path
) -> None:
    async with HostPool(configuration([hasty], tmp_path / "project")) as pool, asyncio.timeout(300):
        host = await pool.host("first")
        with pytest.raises(ConnectionLostError):
            await host.run("echo once >> file; sleep 1000", check=False)
    # On a busy server it may not even have begun.
    written = (hasty.home / "file").read_text() if (hasty.home / "file").exists() else ""
    assert written in {"", "once\n"}


@pytest.mark.row(60)
@pytest.mark.slow
def test_a_silent_job_is_followed_through_every_session_that_the_server_closes(
    network: Network, make_workspace: MakeWorkspace
) -> None:
    notices: list[str] = []
    host = network.host("first")
    workspace = make_workspace(host, notices=notices)
    make_hasty(host, 4)
    job = workspace.start("first", "echo one; sleep 9; echo two", sync=False)
    shown: list[Chunk] = []
    answer = workspace.follow_jobs(JobSelection(jobs=(job.id,), stopped=True), shown.append)
    assert answer.exit_code == 0, answer.jobs
    assert b"".join(chunk.data for chunk in shown) == b"one\ntwo\n"
    assert any("trying again" in notice for notice in notices)
