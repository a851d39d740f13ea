"""The contents of the screen of ``top``: the newest samples, jobs and values, filtered and sorted."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from remote_tool.cli.output.sanitize import one_line
from remote_tool.cli.tables.jobs import readable_duration, short_command
from remote_tool.cli.tables.top import missed_row, percent, reserved_by, server_row, used_by
from remote_tool.cli.top.chart import chart, sparkline
from remote_tool.errors import RemoteToolError
from remote_tool.jobs.job import JobState
from remote_tool.jobs.stacks import name_ranks
from remote_tool.readable import counted, readable_size
from remote_tool.workflows.servers.top import JobsChanged, Missed, Progressed, Sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.workflows.servers.samples import JobRanks, Sample
    from remote_tool.workflows.servers.top import TopEvent

Row = dict[str, str]
# A server that has sent nothing for this long is marked.
SILENT_SECONDS = 10.0
KEPT_SAMPLES, KEPT_POINTS = 240, 4000
SPARK_WIDTH = 12
CHART_HEIGHT = 6
# Nodes that the details of a launch list; a sweep may have thousands of jobs.
MOST_NODES = 32
SERVER_ORDERS = ("name", "use", "cpu")
JOB_ORDERS = ("key", "server", "state", "duration", "loss")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf)", re.IGNORECASE)
_COUNT = re.compile(r"(\d+)\s?(?:/|of)\s?(\d+)")


class Board:
    """The state of the screen; events come from another thread.

    Attributes:
        notice: The last message about a connection.
        has_ended: Whether no more events come.
    """

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.notice = ""
        self.has_ended = False
        self.server_order, self.job_order = SERVER_ORDERS[0], JOB_ORDERS[0]
        self._clock = clock
        self._names = sorted(names)
        self._lock = threading.Lock()
        self._has_changed = threading.Event()
        self._samples: dict[str, Sample] = {}
        self._sampled_at: dict[str, float] = {}
        self._errors: dict[str, RemoteToolError] = {}
        self._loads: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT_SAMPLES))
        self._ranks_on: dict[str, dict[str, JobRanks]] = {}
        self._jobs: dict[str, Job] = {}
        self._launches: dict[str, list[Job]] = {}
        self._values: dict[str, Mapping[str, str]] = {}
        self._series: dict[str, dict[str, deque[tuple[float, float]]]] = defaultdict(dict)

    def apply(self, event: TopEvent) -> None:
        """Take an event."""
        with self._lock:
            match event:
                case Sampled(server, sample):
                    self._samples[server], self._sampled_at[server] = sample, self._clock()
                    self._ranks_on[server] = {each.job: each for each in sample.ranks}
                    self._errors.pop(server, None)
                    load = sample.gpu_load if sample.gpus else sample.cpu
                    if load is not None:
                        self._loads[server].append(load)
                case Missed(server, error):
                    self._errors[server] = error
                case JobsChanged(jobs):
                    self._note_jobs(jobs)
                case Progressed(job_id, values):
                    self._note_values(job_id, values)
        self._has_changed.set()

    def end(self) -> None:
        """Note that no more events come."""
        self.has_ended = True
        self._has_changed.set()

    def wait_for_servers(self, seconds: float) -> bool:
        """Wait until each server has answered or could not be asked; return whether all have."""
        deadline = time.monotonic() + seconds
        while not self.has_ended and not self._have_all_answered and time.monotonic() < deadline:
            self._has_changed.wait(max(0.0, deadline - time.monotonic()))
            self._has_changed.clear()
        return self.has_ended or self._have_all_answered

    @property
    def _have_all_answered(self) -> bool:
        with self._lock:
            return all(name in self._samples or name in self._errors for name in self._names)

    def sort_servers(self) -> None:
        """Sort servers by the next column."""
        self.server_order = _next(SERVER_ORDERS, self.server_order)

    def sort_jobs(self) -> None:
        """Sort jobs by the next column."""
        self.job_order = _next(JOB_ORDERS, self.job_order)

    def job(self, job_id: str) -> Job | None:
        """Return a job."""
        return self._jobs.get(job_id)

    def summary(self) -> str:
        """Return one line about everything."""
        with self._lock:
            answering = [name for name in self._names if self._problem(name) == ""]
            gpus = [gpu for name in answering for gpu in self._samples[name].gpus]
            states = [self._state(job) for job in self._jobs.values()]
        parts = [f"{len(answering)}/{len(self._names)} servers answer"]
        if answering:
            loads = [gpu.load for gpu in gpus if gpu.load is not None]
            reserved = sum(gpu.lease is not None for gpu in gpus)
            parts += [counted(len(gpus), "GPU")] + ([f"{reserved} reserved"] if reserved else [])
            parts += [f"{sum(loads) / len(loads):.0f} % in use"] if loads else []
            parts.append(f"{counted(sum(state.is_running for state in states), 'job')} running")
        if queued := states.count(JobState.QUEUED):
            parts.append(f"{counted(queued, 'job')} queued")
        if unreachable := states.count(JobState.UNREACHABLE):
            parts.append(f"{counted(unreachable, 'job')} unreachable")
        return ", ".join(parts)

    def server_rows(self, text: str = "") -> list[tuple[str, Row]]:
        """Return the name and the row of each server that contains a text."""
        with self._lock:
            rows = [(name, self._server_row(name)) for name in sorted(self._names, key=self._server_sort_key)]
        return _filtered(rows, text)

    def job_rows(self, text: str = "") -> list[tuple[str, Row]]:
        """Return the id and the row of each job that contains a text."""
        with self._lock:
            running = {launch: self._count_running(nodes) for launch, nodes in self._launches.items()}
            rows = [
                (job.id, self._job_row(job, running)) for job in sorted(self._jobs.values(), key=self._job_sort_key)
            ]
        return _filtered(rows, text)

    def server_details(self, name: str, width: int) -> list[str]:
        """Return a line for each GPU of a server: a bar of its load, its memory, its users and its reservation."""
        with self._lock:
            sample = self._samples.get(name)
            problem = self._problem(name)
            keys = {job.id: job.key for job in self._jobs.values()}
        lines = [one_line(f"{name}: {problem}")] if problem else []
        if sample is None:
            return lines
        load = "" if sample.load is None else f", load {sample.load:.1f}"
        first = f"{name}: {sample.cores} cores{load}  "
        lines.append(one_line(first + sparkline([*self._loads[name]], max(1, width - len(first)), low=0, high=100)))
        for gpu in sample.gpus:
            bar = ("█" * round((gpu.load or 0) / 10)).ljust(10, "·")
            memory = "" if gpu.memory_used is None else f"{readable_size(gpu.memory_used):>9}"
            users = _use_and_lease(used_by(gpu, keys), reserved_by(gpu, keys))
            lines.append(one_line(f"GPU {gpu.index} {bar} {percent(gpu.load):>5} {memory}  {users}"))
        return lines

    def job_details(self, job_id: str, width: int) -> list[str]:
        """Return the nodes and ranks of a job's launch, its values as sparklines, and its loss over its steps."""
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None:
                return []
            values = self._values.get(job_id, {})
            series = {name: [*points] for name, points in self._series.get(job_id, {}).items()}
            first = f"job {job.key} on {job.server}: {self._state(job)}  {job.reason}".strip()
            lines = [one_line(first), *self._nodes_and_ranks(job)]
        for name, value in values.items():
            label = f"{name:>10} {value:<14} "
            spark = sparkline([number for _, number in series.get(name, [])], max(1, min(40, width - len(label))))
            lines.append(one_line(f"{label}{spark}".rstrip()))
        drawn = chart(series.get("loss", []), width, CHART_HEIGHT)
        return [*lines, "loss over step", *drawn] if drawn else lines

    def _note_jobs(self, jobs: Sequence[Job]) -> None:
        former, self._jobs = self._jobs, {job.id: job for job in jobs}
        for job_id in former.keys() - self._jobs.keys():
            self._values.pop(job_id, None)
            self._series.pop(job_id, None)
        self._launches = {}
        for job in sorted(jobs, key=lambda job: job.node_rank or 0):
            if job.launch_id:
                self._launches.setdefault(job.launch_id, []).append(job)
            # Recorded values may be hours old, so charts begin after them.
            if job.status_values and job.id not in self._values:
                self._values[job.id] = dict(each.split("=", 1) for each in job.status_values)

    def _note_values(self, job_id: str, values: Mapping[str, str]) -> None:
        self._values[job_id] = {**self._values.get(job_id, {}), **values}
        step = _number(values.get("step", values.get("epoch", "")))
        for name, value in values.items():
            number = _number(value)
            if number is None:
                continue
            points = self._series[job_id].setdefault(name, deque(maxlen=KEPT_POINTS))
            position = float(len(points)) if step is None else step
            # A tail is sent again as long as it grows, also when this value has not changed.
            if not points or points[-1] != (position, number):
                points.append((position, number))

    def _problem(self, name: str) -> str:
        """Return why there is no current sample; empty with one."""
        if name in self._errors:
            return self._errors[name].message.removeprefix(f"{name}: ")
        if name not in self._sampled_at:
            return "waiting"
        silent = self._clock() - self._sampled_at[name]
        return f"no answer for {silent:.0f} s" if silent > SILENT_SECONDS else ""

    def _server_row(self, name: str) -> Row:
        problem = self._problem(name)
        sample = self._samples.get(name)
        if sample is None or name in self._errors:
            return missed_row(name, RemoteToolError(problem))
        row = server_row(name, sample)
        trend = sparkline([*self._loads[name]], SPARK_WIDTH, low=0, high=100)
        return {**row, "TREND": trend, "PROBLEM": one_line(problem) or row["PROBLEM"]}

    def _server_sort_key(self, name: str) -> tuple[float, str]:
        sample = self._samples.get(name)
        if sample is None or self.server_order == "name":
            return (0.0 if self.server_order == "name" else 1.0, name)
        value = sample.gpu_load if self.server_order == "use" else sample.cpu
        return (-(value or 0.0), name)

    def _job_row(self, job: Job, running: Mapping[str, str]) -> Row:
        values = self._values.get(job.id, {})
        losses = [number for _, number in self._series.get(job.id, {}).get("loss", ())]
        duration = job.duration(time.time())
        return {
            "KEY": str(job.key),
            "SERVER": one_line(job.server),
            "STATE": self._state(job).value,
            "LAUNCH": f"{one_line(job.launch_id)[-4:]}/{job.node_rank} {running[job.launch_id]}"
            if job.launch_id
            else "",
            "PROGRESS": _progress(values),
            "LOSS": one_line(values.get("loss", "")),
            "TREND": sparkline(losses, SPARK_WIDTH),
            "DURATION": "" if duration is None else readable_duration(duration),
            "NAME": one_line(job.name),
            "COMMAND": short_command(job),
        }

    def _job_sort_key(self, job: Job) -> tuple[str | float, int]:
        match self.job_order:
            case "server":
                return (job.server, job.key)
            case "state":
                return (self._state(job).value, job.key)
            case "duration":
                return (-(job.duration(time.time()) or 0.0), job.key)
            case "loss":
                loss = _number(self._values.get(job.id, {}).get("loss", ""))
                return (float("inf") if loss is None or loss != loss else loss, job.key)  # noqa: PLR0124 - not a number
        return (0.0, job.key)

    def _count_running(self, nodes: Sequence[Job]) -> str:
        """Return the number of running nodes of a launch: ``2/4 up``."""
        return f"{sum(self._state(each).is_running for each in nodes)}/{len(nodes)} up"

    def _state(self, job: Job) -> JobState:
        """Return the state of a job; a server that does not answer may have ended it."""
        is_unknown = not job.state.is_finished and job.server in self._errors
        return JobState.UNREACHABLE if is_unknown else job.state

    def _nodes_and_ranks(self, job: Job) -> list[str]:
        """Return the state of each node of the job's launch, with its progress and its ranks."""
        lines = []
        nodes = self._launches.get(job.launch_id, [])
        for each in nodes[:MOST_NODES]:
            shown = _progress(self._values.get(each.id, {}))
            state = f"  node {each.node_rank} {each.server}: {self._state(each)} {shown}".rstrip()
            lines.append(one_line(f"{state}  {self._ranks(each)}".rstrip()))
        if more := len(nodes) - len(lines):
            lines.append(f"  and {more} more")
        return lines or [f"  {ranks}" for ranks in [self._ranks(job)] if ranks]

    def _ranks(self, job: Job) -> str:
        """Return ``ranks 0-2 alive, rank 3 ended``; empty if the job has no ranks, or none are known now."""
        known = self._ranks_on.get(job.server, {}).get(job.id)
        if known is None or not self._state(job).is_running:
            return ""
        parts = [f"{name_ranks(known.alive)} alive"] if known.alive else []
        parts += [f"{name_ranks(known.ended)} ended"] if known.ended else []
        return one_line("; ".join(filter(None, (", ".join(parts), known.problem))))


def _use_and_lease(used: str, reserved: str) -> str:
    """Name the users and the holder of a GPU, in few words if they are the same job."""
    if not reserved:
        return used
    return f"{used}, reserved" if used == reserved else ", ".join(filter(None, (used, f"reserved by {reserved}")))


def _progress(values: Mapping[str, str]) -> str:
    """Return ``120/1000 12 %``, or the known part of it."""
    text = values.get("step") or values.get("epoch") or ""
    counts = _COUNT.fullmatch(text)
    share = f" {100 * int(counts[1]) / int(counts[2]):.0f} %" if counts and int(counts[2]) else ""
    return one_line(f"{text}{share}")


def _number(text: str) -> float | None:
    match = _NUMBER.match(text)
    try:
        return float(match[0].replace(",", "")) if match else None
    except ValueError:
        return None


def _next(orders: Sequence[str], current: str) -> str:
    return orders[(orders.index(current) + 1) % len(orders)]


def _filtered(rows: list[tuple[str, Row]], text: str) -> list[tuple[str, Row]]:
    needle = text.casefold()
    return [(key, row) for key, row in rows if needle in " ".join(row.values()).casefold()]
