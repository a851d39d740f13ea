"""What a sync tells while it runs and at its end, for all servers at once."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from remote_tool.errors import ConnectError, SyncError, UsageError
from remote_tool.transport.pool import HostPool
from remote_tool.workflows import sync as workflow
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepOutput, StepProgress, StepStarted
from remote_tool.workflows.sync import ProjectSnapshot, SyncOptions, readable_size, sync
from tests.conftest import make_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.transport.pool import Results
    from remote_tool.transport.rsync import PushResult
    from remote_tool.workflows.events import Event
    from tests.sshd import TestServer


@pytest.fixture
def config(two_servers: tuple[TestServer, TestServer], tmp_path: Path) -> Config:
    config = make_configuration(two_servers, tmp_path / "project")
    (config.local.root / "a.py").write_text("print('a')\n")
    return config


async def run(config: Config, events: list[Event] | None = None, **options: bool) -> Results[PushResult]:
    async with HostPool(config) as pool:
        report = (events if events is not None else []).append
        return await sync(pool, config, (), SyncOptions(**options), report)


async def test_each_server_has_a_step_with_output_log_and_end(config: Config) -> None:
    events: list[Event] = []
    results = await run(config, events)
    assert set(results.values) == {"first", "second"}
    for server in ("first", "second"):
        mine = [event for event in events if event.server == server and not isinstance(event, Notice)]
        assert isinstance(mine[0], StepStarted)
        assert b"a.py" in b"".join(event.data for event in mine if isinstance(event, StepOutput))
        end = mine[-1]
        assert isinstance(end, StepEnded)
        assert end.outcome is Outcome.DONE
        assert end.detail.startswith("sent 1 file (")
        logs = list(config.local.logs.glob(f"*-{server}-rsync.log"))
        assert [b"a.py" in log.read_bytes() for log in logs] == [True]
    await run(config)
    assert len(list(config.local.logs.glob("*-rsync.log"))) == 2, "a sync of nothing leaves no log"


async def test_the_project_is_listed_once_for_all_servers(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, wrapper = tmp_path / "calls", tmp_path / "tools" / "rsync"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexec {shutil.which("rsync")} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    results = await run(config)
    assert len({result.snapshot for result in results.values.values()}) == 1
    assert sorted(calls.read_text().split()) == ["--version", "-rln", "-rlptO", "-rlptO"]


async def test_progress_comes_with_the_size_of_the_whole(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "PROGRESS_SECONDS", 0.0)
    (config.local.root / "b.bin").write_bytes(bytes(2_000_000))
    events: list[Event] = []
    await run(config, events)
    texts = [event.text for event in events if isinstance(event, StepProgress) and event.server == "first"]
    assert texts[-1].startswith("2 of 2 files, ")
    assert "b.bin" in texts[-1]


async def test_a_failure_ends_its_step_and_leaves_the_other_server_alone(
    config: Config, two_servers: tuple[TestServer, TestServer]
) -> None:
    (two_servers[0].home / "project").write_text("in the way")
    events: list[Event] = []
    results = await run(config, events)
    assert isinstance(results.errors["first"], SyncError)
    assert set(results.values) == {"second"}
    outcomes = {event.server: event.outcome for event in events if isinstance(event, StepEnded)}
    assert outcomes == {"first": Outcome.FAILED, "second": Outcome.DONE}


async def test_a_server_that_is_away_is_an_error_of_its_own(
    config: Config, two_servers: tuple[TestServer, TestServer]
) -> None:
    two_servers[1].stop()
    results = await run(config)
    assert isinstance(results.errors["second"], ConnectError)
    assert set(results.values) == {"first"}


@pytest.mark.row(112)
async def test_what_stays_here_is_told_once_and_not_without_end(config: Config) -> None:
    for number in range(15):
        (config.local.root / f"link{number:02}").symlink_to("/")
    (config.local.root / ".env").write_text("TOKEN=canary\n")
    events: list[Event] = []
    results = await run(config, events)
    notices = [event.text for event in events if isinstance(event, Notice) and event.server == ""]
    assert len(notices) == 11
    assert notices[0] == "not sent: .env may hold secrets"
    assert notices[-1] == "not sent: 6 more, named in the logs of this step"
    assert len(results.values["first"].skipped) == 16
    log = next(config.local.logs.glob("*-first-rsync.log")).read_text()
    assert log.count("leads out of the project") == 15


async def test_an_unknown_server_is_refused_before_anything_is_sent(config: Config) -> None:
    async with HostPool(config) as pool:
        with pytest.raises(UsageError, match="'thrid'"):
            await sync(pool, config, ("first", "thrid"), SyncOptions(), lambda _event: None)
    assert not config.local.logs.exists()


async def test_one_listing_serves_waiters_and_survives_one_that_gives_up(config: Config) -> None:
    project = ProjectSnapshot(config)
    given_up = asyncio.create_task(project.get())
    await asyncio.sleep(0)
    given_up.cancel()
    first, second = await asyncio.gather(project.get(), project.get())
    assert first is second
    assert [entry.name for entry in first.entries] == [b"a.py"]


async def test_a_dry_run_says_would(config: Config, two_servers: tuple[TestServer, TestServer]) -> None:
    events: list[Event] = []
    await run(config, events, dry_run=True)
    assert {event.detail for event in events if isinstance(event, StepEnded)} == {"would send 1 file"}
    assert [list(server.home.glob("project")) for server in two_servers] == [[], []]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**3, "5.0 GiB"), (3 * 1024**4, "3.0 TiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert readable_size(size) == text
