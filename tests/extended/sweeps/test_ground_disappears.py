"""The ground disappears: what jobs and our programs stand on is removed, renamed, hidden or forbidden under them.

Every command ends within its bound and says what is wrong. Nothing is recorded that the server's records, once they
can be read again, say otherwise. Nothing runs that no command can end.
"""

from __future__ import annotations

import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

import pytest

from remote_tool import FollowOptions, JobSelection, Workspace
from remote_tool.errors import RemoteToolError
from remote_tool.workflows.jobs import follow
from remote_tool.workflows.selection import StillRunningError
from tests.figures import record_case, record_figure
from tests.sshd import TestServer, make_key

from .ground import THINGS, WAYS, Ground, disappearing, make_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from remote_tool.jobs.job import Job

NAME = "the ground disappears"
EVERYTHING = JobSelection(stopped=True, hidden=True)
# A login, a Python, a grace, and a machine that is busy with the other commands.
BOUND = 60.0
PATIENCE = 300.0


def _of(job: Job) -> JobSelection:
    return JobSelection(jobs=(job.id,), stopped=True)


def _list(workspace: Workspace, _: Job) -> Mapping[str, RemoteToolError]:
    return workspace.list_jobs(EVERYTHING).errors


def _kill(workspace: Workspace, job: Job) -> Mapping[str, RemoteToolError]:
    return workspace.stop_jobs(_of(job), grace=1.0).errors


def _tail(workspace: Workspace, job: Job) -> Mapping[str, RemoteToolError]:
    return workspace.follow_jobs(_of(job), lambda _: None, FollowOptions()).errors


def _wait(workspace: Workspace, job: Job) -> Mapping[str, RemoteToolError]:
    try:
        return workspace.wait_jobs(_of(job), timeout=1).errors
    except StillRunningError:
        return {}


def _pull(workspace: Workspace, job: Job) -> Mapping[str, RemoteToolError]:
    return workspace.pull_jobs(_of(job), ("*.pt",), check=False).errors


def _run(workspace: Workspace, _: Job) -> Mapping[str, RemoteToolError]:
    return workspace.run("true", check=False).errors


def _strays(workspace: Workspace, _: Job) -> Mapping[str, RemoteToolError]:
    return workspace.find_strays().errors


COMMANDS: dict[str, Callable[[Workspace, Job], Mapping[str, RemoteToolError]]] = {
    "job-list": _list,
    "job-kill": _kill,
    "job-tail": _tail,
    "job-wait": _wait,
    "job-pull": _pull,
    "run": _run,
    "strays": _strays,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestServer, Path, Path]]:
    """A prepared server whose home is copied for each case, its checkout, and the key."""
    folder = tmp_path_factory.mktemp("ground")
    key = make_key(folder / "id_ed25519")
    with pytest.MonkeyPatch.context() as patch, TestServer("first", folder / "server", key) as server:
        patch.setenv("HOME", str(folder))
        make_home(server, folder / "checkout")
        yield server, folder / "checkout", key


@pytest.mark.picked_case("Python-renamed-mended later")
@pytest.mark.slow
@pytest.mark.row(136)
@pytest.mark.parametrize("mended", [True, False], ids=["mended later", "not mended"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("thing", THINGS)
def test_when_the_ground_disappears(
    made: tuple[TestServer, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    thing: str,
    way: str,
    *,
    mended: bool,
) -> None:
    server, checkout, key = made
    # Who follows asks again and again: here without long pauses.
    monkeypatch.setattr(follow, "LONGEST_PAUSE", 0.5)
    ground = Ground(tmp_path, key, server, checkout)
    try:
        checkouts = ground.start(tuple(COMMANDS))
        path = ground.path_of(thing, way)
        with disappearing(path, way) as mend, ThreadPoolExecutor(len(COMMANDS)) as pool:
            running = {
                name: pool.submit(_carry_out, name, checkouts[name], job, ground.home)
                for name, job in zip(COMMANDS, ground.jobs, strict=True)
            }
            done, _ = wait([future for name, future in running.items() if name != "job-tail"], BOUND)
            assert len(done) == len(COMMANDS) - 1
            if not mended:
                told = _end_all(ground, checkouts["strays"])
                # Where nothing can be prepared, a message says what keeps it from that.
                is_told = any(path.name in text and "is not prepared" not in text for text in told)
                assert is_told or not ground.living(), told
            mend()
            # It goes on until its job has ended, and finds that out by itself.
            ground.end("job-tail")
            wrong = {name: what for name, future in running.items() if (what := future.result(BOUND))}
            wrong |= _compare_records(ground, checkouts)
        told = _attempt(partial(_stop, checkouts["job-list"], ground.jobs))
        assert not ground.living(), told
        wrong |= _compare_records(ground, {"job-list": checkouts["job-list"]})
    finally:
        ground.close()
    for name in COMMANDS.keys() - wrong.keys():
        record_case(f"sweep of {NAME}: {name}")
    record_figure(f"sweep of {NAME}: failures", len(wrong))
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


def _carry_out(name: str, workspace: Workspace, job: Job, home: Path) -> str:
    """Carry out a command; return what is wrong with what it said."""
    try:
        errors = [*COMMANDS[name](workspace, job).values()]
    except RemoteToolError as error:
        errors = [error]
    except Exception:  # noqa: BLE001 - it is told with the command
        return traceback.format_exc()
    return "; ".join(str(error) for error in errors if not _names(str(error), home))


def _names(text: str, path: Path) -> bool:
    """Whether a message names what is away: the server that is not prepared, or a path there."""
    return "Traceback" not in text and ("first is not prepared" in text or str(path) in text)


def _end_all(ground: Ground, workspace: Workspace) -> list[str]:
    """End all jobs as a user would: as the messages say, some jobs by name, then what has become a stray, the rest."""
    told = [*_attempt(workspace.prepare), *_attempt(partial(_stop, workspace, ground.jobs[::2]))]
    found = workspace.find_strays()
    told += [f"{error} {error.hint}" for error in workspace.end_strays(found, grace=1.0).values()]
    assert not {orphan.pid for orphan in found.strays} & {*ground.living()}, told
    return [*told, *_attempt(partial(_stop, workspace, ground.jobs))]


def _stop(workspace: Workspace, jobs: Sequence[Job]) -> object:
    chosen = JobSelection(jobs=tuple(job.id for job in jobs), stopped=True)
    return workspace.stop_jobs(chosen, grace=1.0).raise_if_any_failed()


def _attempt(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except RemoteToolError as error:
        return [f"{error} {error.hint}"]
    return []


def _compare_records(ground: Ground, checkouts: Mapping[str, Workspace]) -> dict[str, str]:
    """Look from every checkout until all have what the server's records say; return those that never do."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with ThreadPoolExecutor(len(checkouts)) as pool:
            answers = list(pool.map(lambda workspace: workspace.list_jobs(EVERYTHING), checkouts.values()))
        there = {job_id: standing.state for job_id, standing in ground.standings().items()}
        wrong = {
            name: f"{different}, {[*map(str, answer.errors.values())]}, {answer.bad}"
            for name, answer in zip(checkouts, answers, strict=True)
            if (different := _differences(answer.jobs, there)) or answer.errors or answer.bad
        }
        if not wrong or time.monotonic() > deadline:
            return wrong


def _differences(jobs: Sequence[Job], there: Mapping[str, str]) -> list[str]:
    """Return what is recorded here of each job and stands otherwise there."""
    return [f"{job.key}: {job.state} is {there.get(job.id)}" for job in jobs if job.state != there.get(job.id)]
