"""kill -9, and a disk that is full, at every step on which output in a copy of the project comes home: nothing is lost.

After each fault, every byte that jobs have written is in the copy or in the project; after the next pass, it is in the
project under its own name, or under the job's id where that was taken.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from remote_tool.agent.frozen import copies, guests, home
from remote_tool.agent.requests import Folders
from remote_tool.protocol.limits import NEW_COPY

from .injection import WRITING, Fault, Fork, Phase, Zygote, faults
from .sweeping import run_all, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .injection import Call

KILL = "signal=KILL"
BRING, BRING_WHOLE = "tests.extended.sweeps.home_phase:bring", "tests.extended.sweeps.home_phase:bring_whole"
LARGE = "x" * 1_100_000
ROUNDS = 20
# By name in the copy: free names, and taken ones.
WRITTEN = {
    "out/model.pt": "model",
    "out/deep/er.txt": "deeper",
    "top.txt": "top",
    "src/run.log": "log",
    "src/more/new/x.txt": "x",
    "replaced.txt": "a later one",
    "readonly/f.txt": "f",
    "merge/b.txt": "b",
}
TAKEN = {"taken.txt": "mine", "merge/a.txt": "my a", "folder": "a file here, a folder there"}
CHANGED = {"src/part.txt": "changed by the job"}
THEIRS = {"taken.txt": "theirs", "merge/a.txt": "their a", "folder/inner.txt": "inner", "data/in.txt": "in"}


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class HomeCase:
    """A project with a copy in which a job has written."""

    def __init__(self, root: Path) -> None:
        self.root = root / secrets.token_hex(4)
        self.project = self.root / "project"
        self.scripts = self.project / ".remote-scripts"
        self.scripts.mkdir(parents=True)
        self.folders = Folders(str(self.project), str(self.project / ".jobs"), str(self.scripts))
        self.sent = {"train.py": "v1", "src/part.txt": "as sent", "large.bin": LARGE}
        self.send(self.sent)
        put(self.project, {"replaced.txt": "an earlier one", "data/in.txt": "in"})

    def send(self, files: dict[str, str]) -> None:
        put(self.project, files)
        records = []
        for name in files:
            status = (self.project / name).stat()
            records.append(f"{status.st_size} {int(status.st_mtime)} {name}\0")
        (self.scripts / "sent").write_text("".join(records))

    def enter(self) -> tuple[copies.Copy, str]:
        """Begin a job in a copy of the present state."""
        job_id = f"20261121-053000-{secrets.token_hex(16)}"
        made = copies.Copies(self.folders)
        copy = made.copy_for(job_id, NEW_COPY)
        os.close(made.folder)
        assert copy is not None
        home.enter(copy, job_id, guests.ProjectJobs(self.folders.jobs))
        return copy, job_id

    def write_all(self, copy: copies.Copy) -> None:
        """Do what a job does in its copy, and another one in the project meanwhile."""
        code = self.root / copy.code
        # As programs replace a checkpoint.
        put(code, {"replaced.new": WRITTEN["replaced.txt"]})
        (code / "replaced.new").rename(code / "replaced.txt")
        put(code, {name: text for name, text in {**WRITTEN, **TAKEN}.items() if name != "replaced.txt"})
        put(code, CHANGED)
        put(self.project, THEIRS)
        os.link(code / "top.txt", code / "top-too.txt")
        (code / "latest").symlink_to("out/model.pt")
        (code / "absolute").symlink_to(code / "out" / "model.pt")
        os.mkfifo(code / "pipe")
        (code / "readonly").chmod(0o500)

    def texts(self) -> set[str]:
        """Return what the files of the project and of its copies hold."""
        found = set()
        for folder, _, names in os.walk(self.project):
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118 - as walk gives it
                if stat.S_ISREG(os.lstat(path).st_mode):
                    with open(path) as file:  # noqa: PTH123 - see above
                        found.add(file.read())
        return found

    def check_nothing_is_lost(self) -> None:
        """Every text is somewhere."""
        wanted = {*WRITTEN.values(), *TAKEN.values(), *CHANGED.values(), *THEIRS.values(), *self.sent.values()}
        assert wanted <= self.texts(), wanted - self.texts()

    def check_is_home(self, job_id: str, *, moved: bool = True, killed: bool = False) -> None:
        """Every file is in the project under its name; those of others are as they were."""
        there = {**WRITTEN, **THEIRS, **self.sent, "top-too.txt": "top", "latest": "model", "absolute": "model"}
        if moved:
            there |= {f"{name}.{job_id}": text for name, text in {**TAKEN, **CHANGED}.items()}
        for name, text in there.items():
            assert (self.project / name).read_text() == text, name
        if moved:
            links = {
                each.name for each in self.project.rglob("*") if each.is_symlink() and self.scripts not in each.parents
            }
            assert links == {"latest", "absolute"}
            assert (self.project / "top.txt").samefile(self.project / "top-too.txt")
            assert (self.project / "pipe").is_fifo()
            # Only root moves a folder in which it must not write: others are killed between two changes of its mode.
            modes = {0o500, 0o700} if killed and os.geteuid() != 0 else {0o500}
            assert stat.S_IMODE((self.project / "readonly").stat().st_mode) in modes

    def remove(self, copy: copies.Copy) -> None:
        """Remove the copy as a clean does."""
        assert home.bring_whole(copy, self.folders) == ""
        shutil.rmtree(copy.path)

    def forget(self) -> None:
        """Remove everything, also for a user who must not write in one of the folders."""
        for folder, _, _ in os.walk(self.root):
            os.chmod(folder, 0o700)  # noqa: PTH101 - as walk gives it
        shutil.rmtree(self.root)

    def phase(self, function: str, *arguments: object, fault: Fault | None = None) -> Phase:
        return Phase(function, self.root, arguments=(list(self.folders), *arguments), fault=fault)


def calls_of(zygote: Zygote, case: HomeCase, function: str, *arguments: object) -> list[Call]:
    """Return the calls of a pass that nothing disturbs."""
    with Fork(zygote, case.phase(function, *arguments)) as fork:
        fork.go()
        fork.wait()
        assert fork.tracing is not None
        fork.tracing.wait()
        assert fork.stderr() == ""
        return fork.tracing.calls()


def hits(zygote: Zygote, phase: Phase) -> bool:
    """Run a pass with a fault; return whether that came."""
    with Fork(zygote, phase) as fork:
        fork.go()
        fork.wait()
        assert fork.tracing is not None
        fork.tracing.wait()
        return fork.tracing.was_hit()


@pytest.fixture(scope="module")
def zygote(tracing: None) -> Iterator[Zygote]:
    """A process that has the way home imported."""
    del tracing
    with Zygote("tests.extended.sweeps.home_phase", "ctypes") as process:
        yield process


each_effect = pytest.mark.parametrize("effect", [KILL, "error=ENOSPC"])


def chosen(calls: list[Call], effect: str) -> list[Fault]:
    if effect == KILL:
        return [fault for fault in faults(calls, effect) if "/dev/" not in fault.call.text]
    found = faults(calls, effect, WRITING)
    return [fault for fault in found if fault.call.name != "openat" or "O_CREAT" in fault.call.text]


@pytest.mark.slow
@pytest.mark.row(296)
@each_effect
@pytest.mark.parametrize("goes", [False, True])
def test_a_fault_on_the_way_home_loses_nothing(zygote: Zygote, tmp_path: Path, effect: str, *, goes: bool) -> None:
    """At the end of a job, and at a clean of what a lost one has left."""

    def begin() -> tuple[HomeCase, copies.Copy, str, Phase]:
        case = HomeCase(tmp_path)
        copy, job_id = case.enter()
        case.write_all(copy)
        return case, copy, job_id, case.phase(BRING_WHOLE, copy.name) if goes else case.phase(BRING, copy.name, job_id)

    case, copy, job_id, phase = begin()
    calls = calls_of(zygote, case, phase.function, *phase.arguments[1:])
    case.check_is_home(job_id)
    case.remove(copy)
    case.check_is_home(job_id)

    def run(fault: Fault) -> bool:
        case, copy, job_id, phase = begin()
        hit = hits(zygote, case.phase(phase.function, *phase.arguments[1:], fault=fault))
        case.check_nothing_is_lost()
        home.bring_pending(case.folders)
        case.check_is_home(job_id, killed=effect == KILL)
        case.remove(copy)
        case.check_is_home(job_id, killed=effect == KILL)
        case.forget()
        return hit

    sweep(f"output on its way home, {effect}{', clean' if goes else ''}", chosen(calls, effect), run)


def begin_two(folder: Path) -> tuple[HomeCase, copies.Copy, str, int]:
    """Return a case in which another job, which lives as long as a descriptor, runs in the same copy."""
    case = HomeCase(folder)
    copy, job_id = case.enter()
    _, other = case.enter()
    case.write_all(copy)
    job = case.project / ".jobs" / other
    job.mkdir(parents=True)
    (case.project / ".jobs").chmod(0o700)
    alive = os.open(job / "reserve", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    return case, copy, job_id, alive


def finish_two(case: HomeCase, copy: copies.Copy, job_id: str, alive: int) -> None:
    """Check what the first job has left, end the other one, and check again."""
    case.check_nothing_is_lost()
    home.bring_pending(case.folders)
    case.check_is_home(job_id, moved=False)
    code = case.root / copy.code
    assert not (code / "out").is_symlink()
    os.close(alive)
    shutil.rmtree(case.project / ".jobs")
    home.bring_pending(case.folders)
    ids = {path.name.rpartition(".")[2] for path in case.project.glob("taken.txt.*")}
    assert len(ids) == 1
    for name, text in TAKEN.items():
        assert (case.project / f"{name}.{min(ids)}").read_text() == text
    case.remove(copy)
    case.check_is_home(job_id, moved=False)
    case.check_nothing_is_lost()


@pytest.mark.picked
@pytest.mark.slow
@pytest.mark.row(296)
@each_effect
def test_a_fault_while_another_job_runs_in_the_copy_loses_nothing(zygote: Zygote, tmp_path: Path, effect: str) -> None:
    case, copy, job_id, alive = begin_two(tmp_path)
    calls = calls_of(zygote, case, BRING, copy.name, job_id)
    finish_two(case, copy, job_id, alive)

    def run(fault: Fault) -> bool:
        case, copy, job_id, alive = begin_two(tmp_path)
        hit = hits(zygote, case.phase(BRING, copy.name, job_id, fault=fault))
        finish_two(case, copy, job_id, alive)
        case.forget()
        return hit

    sweep(f"output linked while another job runs, {effect}", chosen(calls, effect), run)


@pytest.mark.slow
@pytest.mark.row(296)
def test_jobs_that_end_at_once_with_the_same_names_lose_nothing(zygote: Zygote, tmp_path: Path) -> None:
    def run(number: int) -> None:
        case = HomeCase(tmp_path)
        ended = []
        for job in range(3):
            case.send({**case.sent, "train.py": f"v{number}.{job}"})
            copy, job_id = case.enter()
            put(
                case.root / copy.code, {name: f"{job} {name}" for name in ("out/model.pt", f"out/{job}.txt", "top.txt")}
            )
            ended.append((copy, job_id))
        forks = [Fork(zygote, case.phase(BRING, copy.name, job_id)) for copy, job_id in ended]
        with ThreadPoolExecutor(len(forks)) as pool:
            list(pool.map(Fork.go, forks))
        for fork in forks:
            fork.wait()
            assert fork.stderr() == ""
            fork.close()
        for name in ("out/model.pt", "top.txt"):
            path = case.project / name
            found = {each.read_text() for each in path.parent.glob(f"{path.name}*")}
            assert found == {f"{job} {name}" for job in range(3)}
        assert {path.name for path in (case.project / "out").glob("?.txt")} == {"0.txt", "1.txt", "2.txt"}

    assert not (wrong := run_all(range(ROUNDS), run)), "\n".join(wrong)
