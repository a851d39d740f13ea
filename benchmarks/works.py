"""What is measured, in the order of the table: each makes the contenders of one work on a field of servers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import programs
from benchmarks.contest import BY_HAND, LABML, OURS, PARALLEL_SSH, Contender, Work
from benchmarks.field import Field, small_files
from tests.sshd import TestServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.network_hosts import NetworkHost

SMALL_FILES = 5000
BIG_BYTES = 200_000_000
JOBS_PER_SERVER = 8
RANKS_PER_NODE = 2
EXCLUDED = "--exclude /.remote --exclude /.jobs"


@dataclass(frozen=True)
class Plan:
    """How a work gets its servers.

    Attributes:
        servers: How many.
        make: Makes the work on a field that has them.
    """

    servers: int
    make: Callable[[Field], Work]


def rsync_by_hand(field: Field) -> str:
    """Return the shell that sends the project to all servers at once."""
    return field.in_parallel(
        *(
            f"rsync -a {EXCLUDED} -e {shlex.quote(field.ssh_program(server))} ./"
            f" {server.username}@{server.address}:{field.there(server, 'hand')}/"
            for server in field.servers
        )
    )


def _with_labml(field: Field, run: Callable[[], float], **more: object) -> tuple[Contender, ...]:
    return (Contender(LABML, run, **more),) if field.has_labml else ()  # type: ignore[arg-type]


def _sync_contenders(field: Field, **befores: Callable[[], object]) -> tuple[Contender, ...]:
    shell = rsync_by_hand(field)
    return (
        Contender(BY_HAND, lambda: field.shell(shell).seconds, before=befores["hand"]),
        Contender(OURS, lambda: field.tool("rsync").seconds, before=befores["ours"]),
        *_with_labml(field, lambda: field.labml_tool("rsync").seconds, before=befores["labml"]),
    )


def _nothing() -> None:
    """Leave all as it is."""


def sync_unchanged(field: Field) -> Work:
    """Send a project that is there already."""
    field.fill(small_files(SMALL_FILES))
    unchanged = dict.fromkeys(("ours", "hand", "labml"), _nothing)
    title = f"sync, {SMALL_FILES:,} files, nothing changed, {len(field.servers)} servers"
    return Work("sync-unchanged", title, _sync_contenders(field, **unchanged), "≤ 0.80")


def sync_one_changed(field: Field) -> Work:
    """Send a project of which one file was edited."""
    field.fill(small_files(SMALL_FILES))

    def edit(root: Path) -> Callable[[], object]:
        return lambda: (root / "folder000" / "file00000.py").write_text(f"{time.time_ns()}\n")

    edits = {"ours": edit(field.ours), "hand": edit(field.hand), "labml": edit(field.labml)}
    title = f"sync, one file of {SMALL_FILES:,} changed, {len(field.servers)} servers"
    return Work("sync-one", title, _sync_contenders(field, **edits), "≤ 0.80")


def _first(field: Field, key: str, title: str, goal: str, rounds: int) -> Work:
    def forget(name: str) -> Callable[[], object]:
        return lambda: field.forget(name)

    befores = {name: forget(name) for name in ("ours", "hand", "labml")}
    return Work(key, title, _sync_contenders(field, **befores), goal, rounds=rounds)


def sync_first_small(field: Field) -> Work:
    """Send a project for the first time."""
    field.fill(small_files(SMALL_FILES))
    title = f"first sync, {SMALL_FILES:,} small files, {len(field.servers)} servers"
    return _first(field, "sync-first", title, "≤ 0.95", 5)


def sync_first_big(field: Field) -> Work:
    """Send one large file for the first time; it does not compress."""
    block = next(iter(small_files(1, size=1_000_000).values()))
    # Each megabyte differs, so that no algorithm finds it twice.
    content = b"".join(number.to_bytes(8, "big") + block[8:] for number in range(BIG_BYTES // len(block)))
    field.fill({"weights.bin": content})
    title = f"first sync, 200 MB in one file, {len(field.servers)} servers"
    return _first(field, "sync-big", title, "≤ 1.05", 5)


def run_true(field: Field) -> Work:
    """Run a command that does nothing, on every server."""
    field.tool("prepare")
    field.forget("labml")
    for server in field.servers:
        (server.home / "labml" / ".remote-scripts").mkdir(parents=True)
    addresses = [server.address for server in field.servers]
    pssh = [sys.executable, "-c", programs.PARALLEL_SSH, str(field.folder / "rsa"), "root", *addresses]
    count = len(field.servers)
    contenders = [
        Contender(BY_HAND, lambda: field.everywhere("true").seconds),
        Contender(OURS, lambda: field.tool("run", "--cmd", "true").seconds),
    ]
    if field.has_labml:
        contenders.append(Contender(PARALLEL_SSH, lambda: field.spend(pssh, field.hand).seconds))
        if count == 1:
            words = ("run", "--server", field.servers[0].name, "--cmd", "true")
            contenders.append(Contender(LABML, lambda: field.labml_tool(*words).seconds))
    goal = {1: "≤ 1.6", 8: "≤ 0.9", 64: "≤ 0.35"}.get(count, "")
    servers = "1 server" if count == 1 else f"{count} servers"
    rounds = 3 if count > 16 else 11
    return Work(f"run-{count}", f"run a command, {servers}", tuple(contenders), goal, rounds=rounds)


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

    def sweep(name: str) -> Callable[[], None]:
        def after() -> None:
            wait_for(lambda: not any("sleep 3" in text for server in field.servers for text in _processes(server)))
            for server in field.servers:
                for path in (server.home / name).glob("up-*"):
                    path.unlink()

        return after

    names = [server.name for server in field.servers]
    ours = until_up("ours", lambda: field.script(programs.START_JOBS, str(JOBS_PER_SERVER), job))
    theirs = until_up("labml", lambda: field.labml_script(programs.LABML_JOBS, str(JOBS_PER_SERVER), job, *names))
    contenders = (
        Contender(BY_HAND, until_up("hand", lambda: field.shell(by_hand)), after=sweep("hand")),
        Contender(OURS, ours, after=sweep("ours")),
        *_with_labml(field, theirs, after=sweep("labml"), rounds=1),
    )
    title = f"start {total} jobs, {JOBS_PER_SERVER} on each of {len(field.servers)} servers, until the last one runs"
    return Work("start", title, contenders, "≤ 1.5")


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

    theirs = ("--use-env", "--env", "GLOO_SOCKET_IFNAME", "eth0")
    words = ("helper-torch-launch", "--cmd", "join.py", "--nproc-per-node", str(RANKS_PER_NODE))
    contenders = (
        Contender(BY_HAND, until_joined("hand", lambda: field.shell(_torch_by_hand(field))), after=sweep("hand")),
        Contender(OURS, until_joined("ours", lambda: field.tool(*words)), after=sweep("ours")),
        *_with_labml(field, until_joined("labml", lambda: field.labml_tool(*words, *theirs)), after=sweep("labml")),
    )
    title = f"torch launch {len(field.servers)} x {RANKS_PER_NODE}, until every rank is in the process group"
    return Work("launch", title, contenders, "≤ 1.0", rounds=5)


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


def _tail(field: Field, part: Callable[[list[float]], float], key: str, title: str, goal: str) -> Work:
    (server,) = field.servers
    field.fill({"speak.py": programs.SPEAK.encode()})
    field.tool("prepare")
    field.tool("rsync")
    for name in ("hand", "labml"):
        (server.home / name).mkdir(exist_ok=True)
        (server.home / name / "speak.py").write_text(programs.SPEAK)
    count = 300
    program = f"exec {sys.executable} speak.py {count}"

    def ours() -> float:
        tag = f"tail-{time.time_ns()}"
        field.tool("job-run", "--server", server.name, "--no-sync", "--tag", tag, "--cmd", program)
        words = [sys.executable, "-m", "remote_tool", "job-tail", "--tag", tag]
        return part(_delays(field, words, field.ours))

    def by_hand() -> float:
        folder = field.there(server, "hand")
        field.everywhere(f"cd {folder} && rm -f log && touch log; setsid sh -c '{program}' > log < /dev/null 2>&1 &")
        line = f"{field.ssh(server)} 'exec tail -n +1 -F {folder}/log'"
        return part(_delays(field, ["bash", "-c", f"exec {line}"], field.hand))

    contenders = (Contender(BY_HAND, by_hand), Contender(OURS, ours))
    return Work(key, title, contenders, goal, unit="ms", rounds=5)


def tail_median(field: Field) -> Work:
    """Show what a job writes: half of its lines are faster than this."""
    title = "job-tail, from the job's write to our stdout, p50"
    return _tail(field, statistics.median, "tail-p50", title, "≤ 5 ms")


def tail_slowest(field: Field) -> Work:
    """Show what a job writes: of a hundred lines one is slower than this."""
    title = "job-tail, from the job's write to our stdout, p99"
    return _tail(field, lambda delays: statistics.quantiles(delays, n=100)[98], "tail-p99", title, "≤ 25 ms")


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
        *_with_labml(field, lambda: field.labml_tool("job-list", "--rsync", "--stopped").seconds),
    )
    total = JOBS_PER_SERVER * len(field.servers)
    title = f"job-list --rsync, {len(field.servers)} servers, {total} jobs"
    return Work("list", title, contenders, "≤ 0.20 of labml", against=LABML, rounds=5)


def list_ten_thousand(field: Field) -> Work:
    """List the running ones of ten thousand jobs that have ended."""
    field.script(programs.FILL_REGISTRY, "10000")
    contenders = (
        Contender(OURS, lambda: field.tool("job-list").seconds),
        Contender("its memory, MB", lambda: field.tool("job-list").largest / 1e6),
    )
    return Work("list-10000", "job-list, 10,000 finished jobs", contenders, "≤ 0.4 s, < 100 MB", against="", rounds=5)


def prepare_again(field: Field) -> Work:
    """Prepare servers that are prepared."""
    field.fill(small_files(SMALL_FILES))
    field.tool("prepare")
    contenders = (
        Contender("its rsync", lambda: field.tool("rsync").seconds),
        Contender(OURS, lambda: field.tool("prepare").seconds),
    )
    title = f"prepare, nothing changed, {len(field.servers)} servers"
    return Work("prepare", title, contenders, "≤ 1.3 of its rsync alone", against="its rsync")


def show_help(field: Field) -> Work:
    """Show the help, and complete a word."""
    complete = ["env", "_REMOTE_TOOL_COMPLETE=complete_bash", "COMP_WORDS=remote-tool job-", "COMP_CWORD=1"]
    script = shutil.which("remote-tool", path=f"{sys.prefix}/bin") or "remote-tool"
    contenders = (
        Contender("python -c pass", lambda: field.spend([sys.executable, "-c", "pass"], field.ours).seconds),
        Contender(OURS, lambda: field.spend([script, "--help"], field.ours).seconds),
        Contender("its completion", lambda: field.spend([*complete, script], field.ours, check=False).seconds),
        *_with_labml(field, lambda: field.labml_tool("--help").seconds),
    )
    return Work("help", "--help and shell completion", contenders, "≤ 0.15 s", against="", rounds=11)


def print_much(field: Field) -> Work:
    """Print 100 MB in a second, for five."""
    (server,) = field.servers
    field.fill({"print_much.py": programs.PRINT.encode()})
    field.tool("prepare")
    (server.home / "hand").mkdir(exist_ok=True)
    (server.home / "hand" / "print_much.py").write_text(programs.PRINT)
    program = f"exec {sys.executable} print_much.py 500"

    def by_hand() -> float:
        field.everywhere(f"cd {field.there(server, 'hand')} && rm -f log && {{ {program}; }} > log")
        return float((server.home / "hand" / "seconds").read_text())

    seen = Supervision()

    def ours() -> float:
        (server.home / "ours" / "seconds").unlink(missing_ok=True)
        field.tool("job-run", "--server", server.name, "--no-sync", "--tag", "print", "--cmd", program)
        seen.watch(server)
        field.tool("job-wait", "--tag", "print")
        for folder in (server.home / "ours" / ".jobs").iterdir():
            shutil.rmtree(folder, ignore_errors=True)
        return float((server.home / "ours" / "seconds").read_text())

    contenders = (
        Contender(BY_HAND, by_hand),
        Contender(OURS, ours),
        Contender("its supervisor, % of a core", lambda: seen.percent),
        Contender("its memory, MB", lambda: seen.megabytes),
    )
    title = "a job printing 100 MB/s for 5 s, until it has written that"
    return Work("print", title, contenders, "≤ 1.0; supervisor < 1 %, < 20 MB", rounds=5)


class Supervision:
    """What the supervisor of the last job took while its command ran.

    Attributes:
        percent: Of a core.
        megabytes: At most.
    """

    percent = 0.0
    megabytes = 0.0

    def watch(self, server: NetworkHost | TestServer) -> None:
        """Look at the one supervisor of a server until it has ended."""
        (record,) = (server.home / "ours" / ".jobs").glob("*/started.json")
        pid = int(json.loads(record.read_text())["supervisor"]["pid"])
        process = Path("/proc") / str(pid if isinstance(server, TestServer) else server.outer_pid(pid))
        began, before = time.monotonic(), _processor_seconds(process)
        while (now := _processor_seconds(process)) is not None and before is not None:
            self.percent = 100 * (now - before) / max(0.5, time.monotonic() - began)
            self.megabytes = _most_memory(process) or self.megabytes
            time.sleep(0.05)


def _processor_seconds(process: Path) -> float | None:
    """Return the time that a process has had, also in the kernel; None when it has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _most_memory(process: Path) -> float:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Return as soon as it is true.

    Raises:
        TimeoutError: It does not become so.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.002)


def _marks(field: Field, name: str, pattern: str) -> list[Path]:
    return [path for server in field.servers for path in (server.home / name).glob(pattern)]


def _count(field: Field, name: str) -> int:
    return len(_marks(field, name, "up-*"))


def _processes(server: NetworkHost | TestServer) -> list[str]:
    # A server on loopback shares its processes with this machine: its jobs end by themselves.
    pids = getattr(server, "pids", None)
    return list(pids().values()) if pids is not None else []


def _delays(field: Field, words: list[str], folder: Path) -> list[float]:
    """Read what a program shows of the job until its last line; return the milliseconds from each line's writing."""
    delays = []
    program = field.begin(words, folder)
    assert program.stdout is not None
    try:
        for line in program.stdout:
            arrived = time.time_ns()
            if line.strip() == b"end":
                break
            delays.append((arrived - int(line)) / 1e6)
    finally:
        program.kill()
        program.communicate()
    # The first lines were there before anybody looked.
    return delays[len(delays) // 3 :]


PLANS = {
    "sync-unchanged": Plan(8, sync_unchanged),
    "sync-one": Plan(8, sync_one_changed),
    "sync-first": Plan(8, sync_first_small),
    "sync-big": Plan(4, sync_first_big),
    "run-1": Plan(1, run_true),
    "run-8": Plan(8, run_true),
    "run-64": Plan(64, run_true),
    "start": Plan(8, start_many),
    "launch": Plan(4, launch_torch),
    "tail-p50": Plan(1, tail_median),
    "tail-p99": Plan(1, tail_slowest),
    "list": Plan(8, list_with_logs),
    "list-10000": Plan(1, list_ten_thousand),
    "prepare": Plan(8, prepare_again),
    "help": Plan(1, show_help),
    "print": Plan(1, print_much),
}
