"""Servers with one folder in common: found by test, prepared once, and never mistaken for others."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobSelection, JobState, Workspace
from remote_tool.config.environment import EnvironmentKind
from remote_tool.errors import ConnectionLostError, EnvironmentSetupError
from remote_tool.transport.pool import HostPool
from remote_tool.workflows import agent_client
from remote_tool.workflows.events import Notice, Outcome
from remote_tool.workflows.home_groups import Groups
from remote_tool.workflows.prepare import shared_home
from remote_tool.workflows.prepare.prepare import PrepareOptions, prepare
from remote_tool.workflows.prepare.server import ask_facts
from remote_tool.workflows.prepare.shared_home import Sharing, shares_folder
from remote_tool.workflows.sync.options import SyncOptions
from remote_tool.workflows.sync.sync import sync
from tests.extended.environments.test_facts import stub
from tests.extended.workflows.prepare.servers import desk_for, keep_offline, make_wheel, scripts_of
from tests.project import make_project, write_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.extended.workflows.prepare.servers import Desk
    from tests.sshd import TestServer


def sharing_with(make_server: MakeServer, owner: TestServer, name: str) -> TestServer:
    """Start a server whose home is another one's."""
    return make_server(name, SetEnv=f"HOME={owner.home}")


@pytest.fixture
def trio(make_server: MakeServer) -> list[TestServer]:
    """Two servers with one home, and a third one with its own."""
    first = make_server("first")
    return [first, sharing_with(make_server, first, "second"), make_server("third")]


def steps_done(desk: Desk, name: str) -> list[str]:
    return [event.server for event in desk.ended() if event.step == name and event.outcome is Outcome.DONE]


@pytest.mark.slow
async def test_three_with_one_folder_are_prepared_by_one_transfer_and_one_installation(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """The others find by their own facts that they have all of it; a second time nobody does anything."""
    first = make_server("first")
    servers = [first, sharing_with(make_server, first, "second"), sharing_with(make_server, first, "third")]
    keep_offline(first, make_wheel(tmp_path / "wheels").parent)
    desk = desk_for(servers, tmp_path / "project", EnvironmentKind.VENV)
    (desk.project / "requirements.txt").write_text("tiny_package\n")
    prepared = await desk.prepare()
    for step in ("environment", "rsync", "packages", "supervisor"):
        assert len(steps_done(desk, step)) == 1, step
    assert len([log for log in desk.logs if "rsync" in log.name]) == 1
    (worker,) = steps_done(desk, "rsync")
    assert sorted(each.changed for each in prepared.values()) == [False, False, True]
    assert prepared[worker].changed
    shared = [event for event in desk.ended() if event.outcome is Outcome.UNCHANGED and event.step != "supervisor"]
    assert len(shared) == 6
    assert all(event.detail.endswith(f"shared with {worker}") for event in shared)
    assert not list(scripts_of(first).glob("mark-*"))
    assert not any(each.changed for each in (await desk.prepare()).values())


@pytest.mark.slow
async def test_of_three_two_share_and_one_does_its_own(trio: list[TestServer], tmp_path: Path) -> None:
    root = make_project(tmp_path / "project", trio)
    workspace = Workspace.find(root)
    prepared = workspace.prepare().values
    assert prepared["third"].changed
    assert [prepared[name].changed for name in ("first", "second")].count(True) == 1
    assert json.loads((root / ".remote" / "logs" / "sharing").read_text()) == {"groups": [["first", "second"]]}
    for server in (trio[0], trio[2]):
        assert (server.home / "project" / "hello.py").read_text() == "print('hello')\n"
    assert workspace.run("python hello.py").values == {"first": 0, "second": 0, "third": 0}


@pytest.mark.slow
async def test_a_sync_of_those_that_share_sends_once_and_nobody_waits_for_a_stranger(
    trio: list[TestServer], tmp_path: Path
) -> None:
    workspace = Workspace.find(make_project(tmp_path / "project", trio))
    workspace.prepare()
    (workspace.root / "new.py").write_text("new\n")
    notices: list[str] = []

    def report(event: object) -> None:
        if isinstance(event, Notice):
            notices.append(event.text)

    async with HostPool(workspace.config) as pool:
        results = await sync(pool, workspace.config, (), SyncOptions(), report)
    assert sorted(len(result.sent) for result in results.values.values()) == [0, 1, 1]
    assert results.values["third"].sent == ("new.py",)
    assert notices == []


@pytest.mark.slow
def test_a_server_that_no_longer_shares_gets_all_that_it_lacks(
    trio: list[TestServer], make_server: MakeServer, tmp_path: Path
) -> None:
    """Also before the next prepare has found out: what is remembered decides nothing but the order."""
    first, second, _ = trio
    workspace = Workspace.find(make_project(tmp_path / "project", trio[:2]))
    workspace.prepare()
    second.stop()
    own = make_server("second-own")
    own.name = "second"
    write_configuration(workspace.root, [first, own])
    workspace = Workspace.find(workspace.root)
    assert Groups.recall(workspace.config).of("second") == ("first", "second")
    sent = workspace.rsync().values
    assert (sent["first"].sent, sent["second"].sent) == ((), ("hello.py",))
    prepared = workspace.prepare().values
    assert not prepared["first"].changed
    assert {step.step: step.outcome for step in prepared["second"].steps}["environment"] is Outcome.DONE
    assert Groups.recall(workspace.config) == Groups()
    assert workspace.run("python hello.py").values == {"first": 0, "second": 0}


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
async def test_what_is_configured_is_not_tested(trio: list[TestServer], tmp_path: Path, *, shared: bool) -> None:
    """Who says that none share has each of them do all of it; the locks of the folder keep that whole."""
    desk = desk_for(trio[:2], tmp_path / "project", EnvironmentKind.EXISTING, prefix=sys.prefix)
    desk.config = replace(desk.config, shared=shared, python=None)
    (desk.project / "hello.py").write_text("")
    labels: list[str] = []
    async with HostPool(desk.config, trace=lambda *told: labels.append(told[1])) as pool:
        results = await prepare(pool, desk.config, (), PrepareOptions(), desk.events.append)
    results.raise_if_any_failed()
    assert not any("marker" in label for label in labels)
    assert len(steps_done(desk, "environment")) == (1 if shared else 2)
    assert len(steps_done(desk, "rsync")) == 1
    assert not desk.config.local.sharing.exists()


async def test_servers_with_homes_of_their_own_are_not_even_tested(
    two_servers: tuple[TestServer, TestServer], tmp_path: Path
) -> None:
    """It costs them no round trip."""
    workspace = Workspace.find(make_project(tmp_path / "project", two_servers))
    labels: list[str] = []
    async with HostPool(workspace.config, trace=lambda *told: labels.append(told[1])) as pool:
        (await prepare(pool, workspace.config, (), PrepareOptions(), lambda _: None)).raise_if_any_failed()
    assert not any("marker" in label for label in labels)
    assert labels.count("the server's facts") == 4, "before and after the installation of each"


async def test_a_marker_is_seen_in_the_same_folder_only_and_goes(trio: list[TestServer], tmp_path: Path) -> None:
    workspace = Workspace.find(make_project(tmp_path / "project", trio))
    async with HostPool(workspace.config) as pool:
        first, second, third = [await pool.host(server.name) for server in trio]
        assert await shares_folder(first, second, workspace.config)
        assert await shares_folder(second, first, workspace.config)
        assert not await shares_folder(first, third, workspace.config)
        assert not await shares_folder(third, first, workspace.config)
    assert [list(scripts_of(server).iterdir()) for server in (trio[0], trio[2])] == [[], []]


async def test_a_marker_with_another_content_is_none(trio: list[TestServer], tmp_path: Path) -> None:
    """As a server would have it that guesses."""
    workspace = Workspace.find(make_project(tmp_path / "project", trio))
    liar = trio[1]
    stub(liar.programs, "head", "echo 0123456789abcdef0123456789abcdef")
    config = workspace.config
    async with HostPool(config) as pool:
        assert not await shares_folder(await pool.host("first"), await pool.host("second"), config)


async def test_a_step_that_fails_on_the_one_that_works_is_not_tried_by_the_others(
    trio: list[TestServer], tmp_path: Path
) -> None:
    """It would fail there too."""
    for server in (trio[0], trio[2]):
        stub(server.home / "env" / "bin", "python", 'case "$*" in *-c*) echo 3.11.2 1 ;; *) exit 3 ;; esac')
    desk = desk_for(trio, tmp_path / "project", EnvironmentKind.EXISTING, prefix="~/env")
    async with HostPool(desk.config) as pool:
        results = await prepare(pool, desk.config, (), PrepareOptions(), desk.events.append)
    assert set(results.errors) == {"first", "second", "third"}
    messages = [str(results.errors[name]) for name in ("first", "second")]
    assert sum("shares its folder with" in message for message in messages) == 1
    assert len([event for event in desk.ended() if event.step == "environment"]) == 2


@pytest.mark.slow
async def test_each_machine_of_a_folder_gets_the_image_by_itself(trio: list[TestServer], tmp_path: Path) -> None:
    """All at once, and a pull that fails on one is no failure of another that has it."""
    trio[2].stop()
    trio[2].options["SetEnv"] = f"HOME={trio[0].home}"
    trio[2].start()
    for server in trio:
        # Each pull waits for the other.
        engine = stub(
            server.programs,
            "podman",
            f'[ {server.name} != third ] || exit 0\n[ "$1" = pull ] || exit 1\n'
            'cd && touch "pull-$REMOTE_TOOL_TEST_SERVER"; tries=0\n'
            "until [ -e pull-first ] && [ -e pull-second ]; do\n"
            '    tries=$((tries + 1)); [ "$tries" -lt 500 ] || exit 2; sleep 0.1\n'
            'done\n[ "$REMOTE_TOOL_TEST_SERVER" = first ] || { echo "no such image" >&2; exit 3; }\n',
        )
        engine.with_name("docker").symlink_to(engine)
    desk = desk_for(trio, tmp_path / "project")
    servers = {name: replace(server, container=("image",)) for name, server in desk.config.servers.items()}
    desk.config = replace(desk.config, servers=servers)
    async with HostPool(desk.config) as pool:
        results = await prepare(pool, desk.config, (), PrepareOptions(), desk.events.append)
    assert {name: str(error).splitlines()[0] for name, error in results.errors.items()} == {
        "second": "second: Pulling image failed with status 3"
    }
    outcomes = {event.server: event.outcome for event in desk.ended() if event.step == "image"}
    assert outcomes == {"first": Outcome.DONE, "second": Outcome.FAILED, "third": Outcome.UNCHANGED}


@pytest.mark.slow
async def test_a_disk_that_is_slow_costs_the_test_and_not_the_prepare(
    trio: list[TestServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker that is not written in time is none; one that is not removed in time has been seen all the same."""
    monkeypatch.setattr(shared_home, "_TEST_SECONDS", 4.0)
    stub(trio[0].programs, "mkdir", "exec sleep 15")
    stub(trio[1].programs, "rm", 'sleep 12; exec /bin/rm "$@"')
    config = desk_for(trio, tmp_path / "project").config
    async with HostPool(config) as pool:
        hosts = [await pool.host(server.name) for server in trio[:2]]
        facts = [await ask_facts(host, config) for host in hosts]
        (trio[0].home / "project" / ".remote-scripts").mkdir(parents=True, exist_ok=True)
        for order, follows in (([0, 1], None), ([1, 0], hosts[1])):
            turns = Sharing(config)
            for number in order:
                async with turns.slot(hosts[number], facts[number]) as slot:
                    last = slot
            assert last.follows is follows


async def test_when_the_link_of_the_one_that_works_is_lost_the_next_one_works(
    trio: list[TestServer], tmp_path: Path
) -> None:
    workspace = Workspace.find(make_project(tmp_path / "project", trio[:2]))
    config = workspace.config
    turns = Sharing(config)
    async with HostPool(config) as pool:
        first, second = await pool.host("first"), await pool.host("second")
        facts = [await ask_facts(host, config) for host in (first, second)]
        entered = asyncio.Event()

        async def lose() -> None:
            async with turns.slot(first, facts[0]) as slot:
                assert slot.follows is None
                entered.set()
                await asyncio.sleep(0.3)
                raise ConnectionLostError("gone", server="first")

        async def take_over() -> bool:
            await entered.wait()
            async with turns.slot(second, facts[1]) as slot:
                return slot.follows is None and slot.has_waited

        results = await asyncio.gather(lose(), take_over(), return_exceptions=True)
    assert isinstance(results[0], ConnectionLostError)
    assert results[1] is True
    assert turns.found == [("first", "second")]


async def test_one_home_under_two_paths_is_refused(make_server: MakeServer, tmp_path: Path) -> None:
    """What is installed has its path written into it."""
    first = make_server("first")
    (tmp_path / "other way").symlink_to(first.home)
    second = make_server("second", SetEnv=f'"HOME={tmp_path / "other way"}"')
    workspace = Workspace.find(make_project(tmp_path / "project", [first, second]))
    results = workspace.prepare(check=False)
    (error,) = results.errors.values()
    assert isinstance(error, EnvironmentSetupError)
    assert "but at another path" in str(error)
    assert len(results.values) == 1


@pytest.mark.slow
def test_an_environment_that_does_not_start_on_another_server_is_not_rebuilt_there(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """That would break it on the first one, and so in turns for ever."""
    first = make_server("first")
    second = sharing_with(make_server, first, "second")
    env = first.home / "env"
    stub(env / "bin", "python", '[ "$REMOTE_TOOL_TEST_SERVER" = first ] && exec /usr/bin/env python3 "$@"')
    root = make_project(tmp_path / "project", [first, second], environment={"existing": "~/env"})
    workspace = Workspace.find(root)
    workspace.setup(["first"])
    before = (scripts_of(first) / "activation.json").read_bytes()
    results = workspace.setup(check=False)
    assert list(results.errors) == ["second"]
    assert "start" in str(results.errors["second"])
    assert (scripts_of(first) / "activation.json").read_bytes() == before


@pytest.mark.slow
async def test_the_supervisor_may_be_sent_by_all_at_once(trio: list[TestServer], tmp_path: Path) -> None:
    """As after a new version of remote-tool, when every server is asked at once."""
    workspace = Workspace.find(make_project(tmp_path / "project", trio[:2]))
    workspace.prepare()
    (folder,) = scripts_of(trio[0]).glob("supervisor-*")
    for old in sorted(folder.rglob("*"), reverse=True):
        old.rmdir() if old.is_dir() else old.unlink()
    folder.rmdir()
    async with HostPool(workspace.config) as pool:
        hosts = [await pool.host(name) for name in ("first", "second")]
        await asyncio.gather(*(agent_client.install_supervisor(host, workspace.config) for host in hosts * 3))
    assert [each.name for each in scripts_of(trio[0]).glob("supervisor-*")] == [folder.name]
    assert not list(folder.glob("supervisor-*"))


@pytest.mark.slow
def test_jobs_on_servers_with_one_folder_keep_apart(trio: list[TestServer], tmp_path: Path) -> None:
    workspace = Workspace.find(make_project(tmp_path / "project", trio[:2]))
    workspace.prepare()
    jobs = [workspace.start(name, "echo $REMOTE_TOOL_SERVER") for name in ("first", "second")]
    assert [job.wait(20) for job in jobs] == [JobState.SUCCEEDED] * 2
    assert [list(job.tail()) for job in jobs] == [["first"], ["second"]]
    listed = workspace.list_jobs(JobSelection(stopped=True)).jobs
    assert sorted((job.server, job.state) for job in listed) == [
        ("first", JobState.SUCCEEDED),
        ("second", JobState.SUCCEEDED),
    ]


def test_what_is_remembered_of_groups() -> None:
    known = Groups.of_lists([("a", "b", "c"), ("d", "e"), ("f",)])
    assert known.of("b") == ("a", "b", "c")
    assert known.of("f") == ("f",)
    apart = known.with_found([("a", "c"), ("b",)])
    assert (apart.of("a"), apart.of("b"), apart.of("d")) == (("a", "c"), ("b",), ("d", "e"))
    alone = known.with_found([("a",)])
    assert set(alone.of("c")) == {"a", "b", "c"}, "the others were not asked"
    turns = known.turns()
    assert turns["a"] is turns["b"]
    assert turns["a"] is not turns["d"]
    assert turns["x"] is not turns["y"]


@pytest.mark.parametrize("text", ["", "[]", '{"groups": 3}', '{"groups": [3]}', "\xff", "[" * 100000])
def test_a_memory_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    root = make_project(tmp_path / "project", [])
    config = Workspace.find(root).config
    config.local.logs.mkdir(parents=True, exist_ok=True)
    config.local.sharing.write_text(text, encoding="latin-1")
    assert Groups.recall(config) == Groups()
