"""Measure 1,000 jobs that wait for one GPU on one server: their memory and CPU time, and the hand-over of the GPU."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.works.plan import wait_for
from remote_tool.agent.leases.folders import BASE_VARIABLE
from remote_tool.protocol.framing import FrameReader
from remote_tool.workflows.agent_program import ENTRY, source_archive
from tests.stand_in_gpus import gpu_line, put_nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Mapping

JOBS = 1000
# Of one start request, as of the client.
_AT_ONCE = 50
HANDOVERS = 200
CPU_SECONDS = 30.0
_PATIENCE = 1200.0
_HELD = "until [ -e go ]; do sleep 0.1; done"


class Server:
    """A home folder, the installed agent, and one GPU that is a stand-in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self.jobs = folder / "project" / ".jobs"
        self._scripts = folder / "project" / ".remote-scripts"
        self._programs = folder / "programs"
        self._leases = folder / "leases"
        self._leases.mkdir()
        put_nvidia_smi(self._programs, gpu_line(0, load=0, used=1))
        for name, content in source_archive()[1]:
            path = self._scripts / "agent" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        lists: dict[str, Any] = {"variables": {}, "unset": [], "path": [str(Path(sys.executable).parent)]}
        fields = {"schema": 1, "prefix": sys.prefix, "python": sys.executable, "version": "3", "kind": "existing"}
        (self._scripts / "activation.json").write_text(json.dumps({**fields, **lists}))

    def call(self, op: str, **fields: object) -> dict[str, Any]:
        """Call the agent for its one answer."""
        nonce = secrets.token_hex(16)
        folders = {"project": "project", "jobs_folder": "project/.jobs", "scripts_folder": "project/.remote-scripts"}
        said = subprocess.run(
            [sys.executable, "-I", "-S", str(self._scripts / "agent" / ENTRY)],
            input=json.dumps({"nonce": nonce, "op": op, **folders, **fields}).encode() + b"\n",
            stdout=subprocess.PIPE,
            env={
                "HOME": str(self.home),
                "PATH": f"{self._programs}:{os.environ['PATH']}",
                "REMOTE_TOOL_SUPERVISOR": "1",
                BASE_VARIABLE: str(self._leases),
            },
            check=True,
        ).stdout
        return FrameReader(nonce).feed(said)[0].header

    def start(self, *commands: str) -> list[str]:
        """Start jobs that want the GPU; return their ids."""
        jobs = [
            {
                "id": f"20261121-053000-{secrets.token_hex(16)}",
                "server": "first",
                "environment": {},
                "created_at": time.time(),
                "command": command,
                "gpu_count": 1,
            }
            for command in commands
        ]
        self.call("start", jobs=jobs)
        return [str(job["id"]) for job in jobs]

    def record(self, job_id: str, name: str) -> dict[str, Any]:
        """Return a record of a job."""
        found: dict[str, Any] = json.loads((self.jobs / job_id / name).read_text())
        return found

    def has(self, job_id: str, name: str) -> bool:
        """Return whether a job has a file."""
        return (self.jobs / job_id / name).exists()


def measure(rounds: int | None) -> dict[str, Any]:
    """Queue the jobs, watch them wait, and let some of them run one after the other."""
    jobs, handovers = (JOBS, HANDOVERS) if rounds is None else (10 * rounds, 5 * rounds)
    folder = Path(tempfile.mkdtemp(prefix="remote-tool-bench-"))
    server = Server(folder)
    pids: list[int] = []
    try:
        (first,) = server.start(_HELD)
        waiting: list[str] = []
        while len(waiting) < jobs:
            waiting += server.start(*["true"] * min(_AT_ONCE, jobs - len(waiting)))
        wait_for(lambda: all(server.has(job, "queued") for job in waiting), _PATIENCE)
        pids = [int(server.record(job, "queued")["supervisor"]["pid"]) for job in waiting]
        _wait_for_rest(pids)
        results = {"jobs": jobs, **_waiting(server, pids)}
        (folder / "project" / "go").touch()
        wait_for(lambda: server.has(waiting[handovers], "started.json"), _PATIENCE)
        gaps = sorted(_handovers(server, [first, *waiting[:handovers]]))
        results["handovers"] = len(gaps)
        results["median"], results["p99"] = statistics.median(gaps), gaps[int(len(gaps) * 0.99)]
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), _PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)
    return results


def _wait_for_rest(pids: list[int]) -> None:
    """Wait until all wait: a round without CPU time of any."""
    before = -1
    while (now := sum(map(_cpu, pids))) != before:
        before = now
        time.sleep(2)


def _waiting(server: Server, pids: list[int]) -> dict[str, Any]:
    memory = [_private_bytes(pid) for pid in pids]
    begin, before = time.monotonic(), sum(map(_cpu, pids))
    time.sleep(CPU_SECONDS if len(pids) == JOBS else 1.0)
    spent = (sum(map(_cpu, pids)) - before) / 1e9 / (time.monotonic() - begin)
    begin = time.monotonic()
    server.call("status", ids=None)
    status = time.monotonic() - begin
    return {"memory": statistics.median(memory), "largest": max(memory), "cpu": spent, "status": status}


def _cpu(pid: int) -> int:
    """Return the nanoseconds that a process has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def _handovers(server: Server, jobs: list[str]) -> list[float]:
    """Return the seconds from the end of each command to the start of the next."""
    started = [server.record(job, "started.json")["started_at"] for job in jobs[1:]]
    ended = [server.record(job, "ended.json")["ended_at"] for job in jobs[:-1]]
    return [start - end for start, end in zip(started, ended, strict=True)]


def table(measured: Mapping[str, Any]) -> str:
    """Return what was measured as Markdown."""
    if not measured:
        return "Not measured."
    rows = {
        "private memory of each, median, MB": f"{measured['memory'] / 1e6:.1f}",
        "private memory, largest, MB": f"{measured['largest'] / 1e6:.1f}",
        "CPU of all while they wait, % of a core": f"{measured['cpu'] * 100:.3f}",
        "status of all, s": f"{measured['status']:.2f}",
        "hand-over, median, s": f"{measured['median']:.2f}",
        "hand-over, 99th percentile, s": f"{measured['p99']:.2f}",
    }
    lines = [f"| {measured['jobs']:,} jobs that wait, {measured['handovers']} hand-overs | measured |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())])
