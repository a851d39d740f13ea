"""Launches with the real mpiexec of MPICH on two servers that have no SSH to each other."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote_tool import JobState, Workspace
from remote_tool.errors import ConnectionLostError, JobError
from remote_tool.launchers.request import LaunchRequest
from remote_tool.workflows.jobs.failures import first_failure
from remote_tool.workflows.launch import launch
from remote_tool.workflows.selection import JobSelection
from remote_tool.workflows.start.start_specs import start_specs
from tests.processes import processes_of
from tests.program import remote_tool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remote_tool import Job
    from remote_tool.jobs.job import JobSpec
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.jobs.follow import Chunk
    from remote_tool.workflows.selection import JobsAnswer

# MPI's own library, without a compiler: the numbers are those of MPICH's ABI for MPI_COMM_WORLD, MPI_INT and MPI_SUM.
MPI = """
import ctypes, os, sys, time
mpi = ctypes.CDLL("libmpich.so.12")
mpi.MPI_Init(None, None)
one, total = ctypes.c_int(1), ctypes.c_int()
mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1, 0x4C000405, 0x58000003, 0x44000000)
names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "REMOTE_TOOL_SERVER", "WHO")
words = [str(total.value), *(os.environ.get(name, "-") for name in names), *sys.argv[1:]]
# In one piece: what ranks write at the same time would mix.
os.write(1, (" ".join(words) + "\\n").encode())
# MPICH 4.0 may wait for ever in its end, under ssh too, when one machine is through with it before another.
mpi.MPI_Barrier(0x44000000)
time.sleep(0.3)
mpi.MPI_Finalize()
"""
FAILS = """
import os, sys, time
print("up", flush=True)
if os.environ["PMI_RANK"] == "2":
    print("had enough", file=sys.stderr, flush=True)
    raise SystemExit(7)
time.sleep(1000)
"""
# As mpi4py's Comm.Abort: at once, with what was said just before.
ABORTS = """
import ctypes, os, sys, time
mpi = ctypes.CDLL("libmpich.so.12")
mpi.MPI_Init(None, None)
mpi.MPI_Barrier(0x44000000)  # one that is still in MPI_Init would abort, too
if os.environ["PMI_RANK"] == sys.argv[1]:
    print("loss is NaN at step 7", file=sys.stderr, flush=True)
    mpi.MPI_Abort(0x44000000, 42)
time.sleep(1000)
"""


def missing() -> str | None:
    absent = [name for name in ("mpiexec.hydra", "hydra_pmi_proxy") if shutil.which(name) is None]
    if absent:
        return f"there is no {', '.join(absent)}: install mpich"
    try:
        ctypes.CDLL("libmpich.so.12")
    except OSError:
        return "there is no libmpich.so.12: install mpich"
    return None


pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


@pytest.fixture
def trainer(shared_project: Path) -> Workspace:
    """The prepared workspace with the programs of this file."""
    for name, text in {"mpi": MPI, "mpi_fails": FAILS, "mpi_aborts": ABORTS}.items():
        (shared_project / f"{name}.py").write_text(text)
    return Workspace.find(shared_project)


def by_id(jobs: Sequence[Job]) -> JobSelection:
    return JobSelection(jobs=tuple(job.id for job in jobs), stopped=True)


def test_ranks_of_all_servers_add_up_with_the_environment_of_their_own_server(trainer: Workspace) -> None:
    request = LaunchRequest("mpi.py 'a  b' \"it's\"", processes=2, environment={"WHO": "me '$HOME'"})
    answer = trainer.launch_mpi(request)
    shown: list[Chunk] = []
    followed = trainer.follow_jobs(by_id(answer.jobs), shown.append)
    out = b"".join(chunk.data for chunk in shown if chunk.stream == "out").decode()
    err = b"".join(chunk.data for chunk in shown if chunk.stream == "err").decode()
    assert followed.exit_code == 0, out + err + str(followed.jobs)
    assert sorted(out.splitlines()) == [
        "4 0 4 0 first me '$HOME' a  b it's",
        "4 1 4 1 first me '$HOME' a  b it's",
        "4 2 4 0 second me '$HOME' a  b it's",
        "4 3 4 1 second me '$HOME' a  b it's",
    ]
    assert [(job.server, job.node_rank, job.is_master) for job in answer.jobs] == [
        ("first", 0, True),
        ("second", 1, False),
    ]
    assert len({job.launch_id for job in answer.jobs}) == 1


@pytest.mark.row(161)
def test_ranks_begin_in_the_working_folder(trainer: Workspace) -> None:
    folder = trainer.root / "solver" / "part one"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "where.py").write_text("import os, sys; sys.stdout.write(os.getcwd() + '\\n')\n")
    answer = trainer.launch_mpi(LaunchRequest("where.py", workdir="solver/part one"))
    shown: list[Chunk] = []
    followed = trainer.follow_jobs(by_id(answer.jobs), shown.append)
    assert followed.exit_code == 0, shown
    lines = b"".join(chunk.data for chunk in shown if chunk.stream == "out").decode().splitlines()
    assert [line.endswith("/home/project/solver/part one") for line in lines] == [True, True]
    assert len(set(lines)) == 2
    # What a rank that failed leaves for its node is found, too.
    answer = trainer.launch_mpi(LaunchRequest("sh -c 'exit 7'", workdir="solver"))
    ended = trainer.wait_jobs(by_id(answer.jobs)).jobs
    assert 7 in {job.exit_code for job in ended}
    # On a busy machine, the other node is stopped before its own rank has failed.
    assert all(job.exit_code == 7 or job.stopped_with_launch for job in ended)


@pytest.mark.parametrize("words", [["-m", "solver.steps --count 5"], ["--cmd", "-m solver.steps --count 5"]])
def test_a_module_is_run_as_python_does(trainer: Workspace, words: list[str]) -> None:
    folder = trainer.root / "solver"
    folder.mkdir(exist_ok=True)
    (folder / "steps.py").write_text(
        "import sys\nsys.stdout.write(' '.join([__name__, __package__, *sys.argv[1:]]) + '\\n')\n"
    )
    done = remote_tool("helper-mpi-launch", *words, "--follow", cwd=trainer.root)
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition(" | ")[2] for line in done.stdout.splitlines()) == ["__main__ solver --count 5"] * 2


def test_a_command_or_a_module_is_wanted(trainer: Workspace) -> None:
    for words in ([], ["--cmd", "true", "-m", "solver.steps"]):
        done = remote_tool("helper-mpi-launch", *words, cwd=trainer.root)
        assert (done.returncode, "Give either --cmd or -m" in done.stderr) == (2, True), done.stderr


def test_a_rank_that_fails_before_it_meets_the_others_ends_the_launch(trainer: Workspace) -> None:
    """The others would wait in MPI_Init for ever."""
    answer = trainer.launch_mpi(LaunchRequest("mpi_fails.py", processes=2))
    ended = trainer.wait_jobs(by_id(answer.jobs), timeout=300).jobs
    first, second = ended
    assert (second.state, second.exit_code) == (JobState.FAILED, 7), second
    assert first.state is JobState.FAILED
    assert "second (node 1) ended with exit code 7" in first.reason
    assert [processes_of(job.id) for job in ended] == [[], []]
    trainer.pull_logs(by_id(ended))
    said = b"".join((trainer.config.local.job(job.id) / "job.err").read_bytes() for job in ended)
    assert b"rank 2 of 4 on second ended with exit code 7\n" in said
    assert b"had enough\n" in said


@pytest.mark.row(166)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_launch_that_a_rank_aborts_ends_with_its_code_and_its_message_is_the_cause(
    trainer: Workspace, rank: int
) -> None:
    answer = trainer.launch_mpi(LaunchRequest(f"mpi_aborts.py {rank}", processes=2))
    followed = trainer.follow_jobs(by_id(answer.jobs), lambda _chunk: None)
    guilty, other = followed.jobs if rank < 2 else followed.jobs[::-1]
    assert (followed.exit_code, guilty.state, guilty.exit_code) == (42, JobState.FAILED, 42), followed.jobs
    assert f"{guilty.server} (node {rank // 2}) ended with exit code 42" in other.reason
    failure = first_failure(followed.jobs, trainer.config.local.jobs)
    assert failure is not None
    assert (failure.server, failure.exit_code) == (guilty.server, 42)
    assert failure.message.startswith(f"Abort(42) on node {rank} (rank {rank} in comm 0): application called MPI_Abort")
    assert "loss is NaN at step 7\n" in failure.traceback
    assert "[proxy:" not in failure.traceback


def test_killing_one_job_ends_all_of_it(trainer: Workspace) -> None:
    answer = trainer.launch_mpi(LaunchRequest("sleep 600", processes=2))
    trainer.stop_jobs(JobSelection(jobs=(answer.jobs[1].id,)), grace=5).raise_if_any_failed()
    ended = trainer.wait_jobs(by_id(answer.jobs), timeout=300).jobs
    assert {job.state for job in ended} == {JobState.KILLED}
    assert [processes_of(job.id) for job in ended] == [[], []]


def test_missing_mpich_is_reported_and_leaves_nothing(trainer: Workspace) -> None:
    request = LaunchRequest("sleep 600", environment={"PATH": "/nowhere"})
    with pytest.raises(JobError, match="before it listed the commands for the other servers") as caught:
        trainer.launch_mpi(request)
    assert "MPICH" in caught.value.hint


def test_a_first_node_that_ends_early_is_reported_without_its_record_here(
    trainer: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_the_record(context: Context, _servers: Sequence[str]) -> None:
        newest = max(context.registry.load()[0], key=lambda job: job.key)
        (context.registry.folder / newest.id / "job.yaml").unlink()

    monkeypatch.setattr(launch, "refresh", lose_the_record)
    with pytest.raises(JobError, match="before it listed the commands for the other servers"):
        trainer.launch_mpi(LaunchRequest("sleep 600", environment={"PATH": "/nowhere"}))


def test_a_first_node_whose_answer_was_lost_does_not_stay(trainer: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start_and_lose(context: Context, specs: Sequence[JobSpec]) -> JobsAnswer:
        answer = await start_specs(context, specs)
        return replace(answer, errors={spec.server: ConnectionLostError(f"{spec.server} is gone") for spec in specs})

    monkeypatch.setattr(launch, "start_specs", start_and_lose)
    monkeypatch.setattr(launch, "DEFAULT_GRACE", 1.0)
    answer = trainer.launch_mpi(LaunchRequest("sleep 600"), check=False)
    (job,) = answer.jobs
    assert (list(answer.errors), answer.exit_code, job.state) == (["first"], 4, JobState.KILLED)
    assert processes_of(job.id) == []


def test_one_server_alone_needs_no_other(trainer: Workspace) -> None:
    answer = trainer.launch_mpi(LaunchRequest("mpi.py", servers=("second",), processes=2))
    (ended,) = trainer.wait_jobs(by_id(answer.jobs), timeout=300).jobs
    assert ended.state is JobState.SUCCEEDED, ended
