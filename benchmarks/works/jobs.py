"""Works that start jobs, launch torch, and list what has run."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

from benchmarks import programs
from benchmarks.contest import BY_HAND, LABML, MEMORY, OURS, Contender, Goal, Work
from benchmarks.works.plan import how_many, wait_for, with_labml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.field import Field, Server

JOBS_PER_SERVER = 8
RANKS_PER_NODE = 2
FINISHED = 10_000
SUPERVISORS = (
    "Each job has a supervisor, whose record is on the disk before its command runs; by hand, there is a shell."
    " Of 11 ms of processor time for each job, two forks of Python take half: each copies page tables and touches"
    " pages."
)
TORCH = (
    "Nearly all of it is the import of torch, in each worker and in each torchrun, also by hand. The rest, 0.5 to"
    " 0.9 s, is the sync, the test of the connections between the servers, and the start."
)


def start_many(field: Field) -> Work:
    """Start jobs on every server with one call, until the last one runs."""
    field.tool("prepare")
    for server in field.servers:
        (server.home / "hand").mkdir()
        (server.home / "labml" / ".remote-scripts").mkdir(parents=True)
    total = JOBS_PER_SERVER * len(field.servers)
    job = "touch up-$(cat /proc/sys/kernel/random/uuid); exec sleep 3"
    loop = (
        f"cd {{folder}} && for i in {' '.join(map(str, range(JOBS_PER_SERVER)))}; do"
        f" setsid nohup sh -c {shlex.quote(job)} > log$i 2>&1 < /dev/null & done"
    )
    by_hand = field.in_parallel(
        *(
            f"{field.ssh(server)} {shlex.quote(loop.format(folder=field.there(server, 'hand')))}"
            for server in field.servers
        )
    )

    def until_up(name: str, start: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            begin = time.perf_counter()
            start()
            wait_for(lambda: _count(field, name) >= total)
            return time.perf_counter() - begin

        return run

    names = [server.name for server in field.servers]
    ours = until_up("ours", lambda: field.script(programs.START_JOBS, str(JOBS_PER_SERVER), job))
    theirs = until_up("labml", lambda: field.labml_script(programs.LABML_JOBS, str(JOBS_PER_SERVER), job, *names))
    contenders = (
        Contender(BY_HAND, until_up("hand", lambda: field.shell(by_hand)), after=_sweep(field, "hand")),
        Contender(OURS, ours, after=_sweep(field, "ours")),
        *with_labml(field, theirs, after=_sweep(field, "labml"), rounds=1),
    )
    title = f"start {total} jobs on {how_many(field)}, until the last one runs"
    goals = (Goal(1.5, why=SUPERVISORS),) if len(field.servers) > 1 else ()
    return Work("start", title, contenders, goals)


def _sweep(field: Field, name: str) -> Callable[[], None]:
    """Return what removes the traces of started jobs once these have ended."""

    def after() -> None:
        wait_for(lambda: not any("sleep 3" in text for server in field.servers for text in _processes(server)))
        for server in field.servers:
            for path in (server.home / name).glob("up-*"):
                path.unlink()

    return after


def launch_torch(field: Field) -> Work:
    """Start torch on every server, until every rank is in the process group."""
    field.fill({"join.py": programs.JOIN.encode()})
    field.tool("prepare")
    for server in field.servers:
        for name in ("hand", "labml"):
            (server.home / name / ".remote-scripts").mkdir(parents=True)
            (server.home / name / "join.py").write_text(programs.JOIN)

    def until_joined(name: str, start: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            begin = time.time()
            start()
            wait_for(lambda: len(_marks(field, name, "joined-*")) >= RANKS_PER_NODE * len(field.servers))
            return max(path.stat().st_mtime for path in _marks(field, name, "joined-*")) - begin

        return run

    def sweep(name: str) -> Callable[[], None]:
        def after() -> None:
            wait_for(lambda: not any("join.py" in text for server in field.servers for text in _processes(server)))
            for path in _marks(field, name, "joined-*"):
                path.unlink()

        return after

    # Nearly all of it is this, and nobody's is to be the first.
    field.spend([sys.executable, "-c", "import torch.distributed.run"], field.hand)
    theirs = ("--use-env", "--env", "GLOO_SOCKET_IFNAME", "eth0")
    words = ("helper-torch-launch", "--cmd", "join.py", "--nproc-per-node", str(RANKS_PER_NODE))
    contenders = (
        Contender(BY_HAND, until_joined("hand", lambda: field.shell(_torch_by_hand(field))), after=sweep("hand")),
        Contender(OURS, until_joined("ours", lambda: field.tool(*words)), after=sweep("ours")),
        *with_labml(
            field, until_joined("labml", lambda: field.labml_tool(*words, *theirs)), after=sweep("labml"), rounds=1
        ),
    )
    title = f"torch launch {len(field.servers)} x {RANKS_PER_NODE}, until every rank is in the process group"
    goals = (Goal(1.05, why=TORCH),) if len(field.servers) > 1 else ()
    return Work("launch", title, contenders, goals, warms_up=False)


def _torch_by_hand(field: Field) -> str:
    # Any port will do that nobody has had of late.
    port = 20000 + time.time_ns() // 1000 % 10000
    where = f"--master-addr {field.servers[0].address} --master-port {port}"
    commands = []
    for rank in range(len(field.servers)):
        server = field.servers[rank]
        size = f"--nnodes {len(field.servers)} --node-rank {rank} --nproc-per-node {RANKS_PER_NODE}"
        torchrun = f"GLOO_SOCKET_IFNAME=eth0 {sys.executable} -m torch.distributed.run {size} {where} join.py"
        command = f"cd {field.there(server, 'hand')} && {torchrun}"
        commands.append(f"{field.ssh(server)} {shlex.quote(command)}")
    return field.in_parallel(*commands)


def list_with_logs(field: Field) -> Work:
    """List jobs and bring their logs home."""
    field.tool("prepare")
    job = "seq 20000; exec sleep 1"
    field.script(programs.START_JOBS, str(JOBS_PER_SERVER), job)
    names = [server.name for server in field.servers]
    for server in field.servers:
        (server.home / "labml" / ".remote-scripts").mkdir(parents=True)
    if field.has_labml:
        field.labml_script(programs.LABML_JOBS, str(JOBS_PER_SERVER), job, *names)
    contenders = (
        Contender(OURS, lambda: field.tool("job-list", "--rsync", "--stopped").seconds),
        *with_labml(field, lambda: field.labml_tool("job-list", "--rsync", "--stopped").seconds),
    )
    total = JOBS_PER_SERVER * len(field.servers)
    goals = (Goal(0.2, against=LABML),) if len(field.servers) > 1 else ()
    title = f"job-list --rsync, {how_many(field)}, {total} jobs"
    return Work("list", title, contenders, goals, against=LABML)


def list_ten_thousand(field: Field) -> Work:
    """List the running ones of ten thousand jobs that have ended."""
    field.script(programs.FILL_REGISTRY, str(FINISHED))
    contenders = (
        Contender(OURS, lambda: field.tool("job-list").seconds),
        Contender(MEMORY, lambda: field.tool("job-list").largest / 1e6),
    )
    goals = (Goal(0.4, "s"), Goal(100, "MB", of=MEMORY))
    return Work("list-10000", f"job-list, {FINISHED:,} finished jobs", contenders, goals, against="")


def _marks(field: Field, name: str, pattern: str) -> list[Path]:
    return [path for server in field.servers for path in (server.home / name).glob(pattern)]


def _count(field: Field, name: str) -> int:
    return len(_marks(field, name, "up-*"))


def _processes(server: Server) -> list[str]:
    # A server on loopback shares its processes with this machine: its jobs end by themselves.
    pids = getattr(server, "pids", None)
    return list(pids().values()) if pids is not None else []
