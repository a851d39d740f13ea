"""What a sync tells while it runs and at its end, for all servers at once."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from remote_tool.config.servers import Server
from remote_tool.errors import ConnectError, SyncError, UsageError
from remote_tool.transport.pool import HostPool
from remote_tool.transport.sync.entries import Entry
from remote_tool.workflows.events import Notice, Outcome, StepEnded, StepOutput, StepProgress, StepStarted
from remote_tool.workflows.prepare.prepare import PrepareOptions, prepare
from remote_tool.workflows.sync import first_sync
from remote_tool.workflows.sync import sync as workflow
from remote_tool.workflows.sync.first_sync import standing_out
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.project import ProjectSnapshot
from remote_tool.workflows.sync.sync import sync
from remote_tool.workflows.transfer_pace import TransferPace
from tests.extended.configuration import make_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.config.model import Config
    from remote_tool.transport.pool import Results
    from remote_tool.transport.sync.push import PushResult
    from remote_tool.workflows.events import Event
    from tests.sshd import TestServer


@pytest.fixture
def config(two_servers: tuple[TestServer, TestServer], tmp_path: Path) -> Config:
    config = make_configuration(two_servers, tmp_path / "project")
    (config.local.root / "a.py").write_text("print('a')\n")
    return config


@pytest.fixture
def slow_rsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An rsync that sends 1 MB per second."""
    wrapper = tmp_path / "slow" / "rsync"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("rsync")} --bwlimit=1m "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")


async def run(config: Config, events: list[Event] | None = None, **options: Any) -> Results[PushResult]:
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
    assert texts[-1].startswith("100 % of 1.9 MiB, ")
    assert texts[-1].endswith("2 of 2 files b.bin")


@pytest.mark.slow
@pytest.mark.usefixtures("slow_rsync")
async def test_a_large_sync_says_percent_rate_and_time_left_also_when_it_is_resumed(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also a sync whose rest goes at once says how far it is; the first one has six seconds left when it is stopped.
    monkeypatch.setattr(workflow, "PROGRESS_SECONDS", 0.0)
    (config.local.root / "b.bin").write_bytes(os.urandom(8_000_000))
    form = re.compile(r"(\d+) % of 7.6 MiB(?:, ([\d.]+) MiB/s(?:, (\d+) s left)?)?, \d of 2 files b.bin")
    events: list[Event] = []

    def told() -> list[re.Match[str]]:
        texts = [event.text for event in events if isinstance(event, StepProgress) and event.server == "first"]
        return [found for text in texts if (found := form.fullmatch(text))]

    running = asyncio.create_task(run(config, events))
    while not any(int(each[1]) >= 25 for each in told()):
        assert not running.done(), events
        await asyncio.sleep(0.05)
    percents = [int(each[1]) for each in told()]
    assert percents == sorted(percents)
    assert any(0.2 < float(each[2]) < 3 and 0 < int(each[3]) < 40 for each in told() if each[3])
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert not any(isinstance(event, StepEnded) for event in events)
    events.clear()
    # What came before the interruption is not sent again, and counts.
    await run(config, events)
    assert next(int(each[1]) for each in told() if int(each[1]) > 3) >= 20
    assert int(told()[-1][1]) == 100


def test_the_pace_of_a_transfer_is_that_of_its_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace, mebibyte = TransferPace(), 1024 * 1024
    assert pace.describe(0, 1000 * mebibyte) == "0 % of 1000.0 MiB"
    told = []
    for now, done in ((1.0, 10), (2.0, 20), (12.0, 20), (20.0, 420), (30.0, 1000)):  # noqa: B007
        told.append(pace.describe(done * mebibyte, 1000 * mebibyte))
    assert told == [
        "1 % of 1000.0 MiB, 10.0 MiB/s, 1 min left",
        "2 % of 1000.0 MiB, 10.0 MiB/s, 1 min left",
        "2 % of 1000.0 MiB",
        "42 % of 1000.0 MiB, 22.2 MiB/s, 26 s left",
        "100 % of 1000.0 MiB, 58.0 MiB/s",
    ]
    assert TransferPace().describe(5 * mebibyte, 0) == "5.0 MiB"


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
    assert len(notices) == 12
    assert notices[0] == "not sent: .env may contain secrets"
    assert notices[-2] == "not sent: 6 more, listed in the logs of this step"
    assert "remote-tool run --cmd 'ln -s /path/there link00'" in notices[-1]
    assert len(results.values["first"].skipped) == 16
    log = next(config.local.logs.glob("*-first-rsync.log")).read_text()
    assert log.count("points outside the project") == 15


async def test_before_the_first_sync_a_line_names_what_might_stay_here(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_sync, "LARGE", 100 * 1024)
    monkeypatch.setattr(first_sync, "MODEST", 10 * 1024)
    root = config.local.root
    for name, kilobytes in (("wandb/run/x", 1), ("data/train.bin", 20), ("src/deep/big.bin", 150), ("src/a.py", 2)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes(kilobytes * 1024))
    (root / ".gitattributes").write_text("*.pt filter=lfs\n")
    (root / "model.pt").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")
    events: list[Event] = []
    await run(replace(config, local=replace(config.local, exclude=".remote/leave-out.txt")), events)
    first, second = (event.text for event in events if isinstance(event, Notice))
    assert first == (
        "this first sync sends src/deep/big.bin (150.0 KiB), data (20.0 KiB), wandb (1.0 KiB); "
        "to exclude, add to .remote/leave-out.txt, one per line: /src/deep/big.bin  /data  /wandb"
    )
    assert second.startswith("1 file is a pointer of Git LFS")
    told = [isinstance(event, Notice) for event in events]
    assert told.index(True) < next(n for n, event in enumerate(events) if isinstance(event, StepEnded))
    events.clear()
    (root / "a.py").write_text("more\n")
    await run(config, events)
    assert not any(isinstance(event, Notice) for event in events)


async def test_files_excluded_by_exclude_txt_are_not_named(config: Config) -> None:
    (config.local.root / "wandb").mkdir()
    (config.local.root / "wandb" / "log").touch()
    config.local.exclude_file.write_text("/wandb\n")
    events: list[Event] = []
    await run(config, events)
    assert not any(isinstance(event, Notice) for event in events)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"data/x": 10}, []),
        ({"data/x": 11 << 20, "pkg/data/x": 11 << 20}, ["data", "pkg/data"]),
        ({".venv/lib/node_modules/x": 1}, [".venv"]),
        ({"mine/pyvenv.cfg": 1, "mine/bin/python": 1}, ["mine"]),
        ({"big/a": 60 << 20, "big/b": 60 << 20}, ["big"]),
        ({"a": 99 << 20, "b": 99 << 20}, []),
        ({"x/data/a": 200 << 20, "x/code.py": 10}, ["x/data"]),
    ],
    ids=str,
)
def test_what_stands_out_is_the_folder_or_file_itself(files: dict[str, int], expected: list[str]) -> None:
    entries = [Entry(name.encode(), size, 0, 0o644) for name, size in files.items()]
    assert sorted(name.decode() for name in standing_out(entries)) == expected


async def test_an_unknown_server_is_refused_before_anything_is_sent(config: Config) -> None:
    async with HostPool(config) as pool:
        with pytest.raises(UsageError, match="'thrid'"):
            await sync(pool, config, ("first", "thrid"), SyncOptions(), lambda _event: None)
        assert [path.name for path in config.local.logs.iterdir()] == ["workspace"]


@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.row(247)
async def test_a_project_that_cannot_be_listed_is_one_error_before_any_login(tmp_path: Path, *, prepares: bool) -> None:
    """The servers answer nothing, so a login takes until its time is up."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    names = ("first", "second")
    servers = {name: Server(name, "127.0.0.1", username="me", port=port) for name in names}
    config = replace(make_configuration([], tmp_path / "project"), servers=servers)
    config.local.exclude_file.mkdir(parents=True)
    events: list[Event] = []
    results: Results[Any]
    async with HostPool(config) as pool:
        if prepares:
            results = await prepare(pool, config, (), PrepareOptions(), events.append)
        else:
            results = await sync(pool, config, (), SyncOptions(), events.append)
    listener.close()
    assert tuple(results.errors) == names
    error = results.errors["first"]
    assert isinstance(error, SyncError)
    assert error.message.endswith("exclude.txt cannot be read: Is a directory")
    assert results.errors["second"] is error
    assert not events


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
