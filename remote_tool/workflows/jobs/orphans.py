"""job-kill --orphans: find and end processes that jobs left on the servers."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, RemoteToolError
from remote_tool.jobs.job import DEFAULT_GRACE
from remote_tool.protocol.job_fields import is_number
from remote_tool.transport.pool import on_every
from remote_tool.workflows.agent_client import NotPreparedError, call_until_answered
from remote_tool.workflows.jobs.stop import check_stop
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.status.pending_stops import become_lost, longest_stop, unprepared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.workflows.context import Context

IDENTITY = ("hostname", "machine_id", "boot_id", "pid_namespace")
JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
STATE = re.compile("[a-z]{1,20}")
LONGEST_TEXT = 1000
MOST_STRAYS = 2000
LARGEST = 2**62
SHOWN_PIDS = 20
# For a job that its server does not know.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Orphan:
    """A process of a job that nobody supervises: it has the mark of the job, or an ancestor has.

    Attributes:
        server: The server.
        pid: Its process id.
        start_time: In clock ticks since the boot; identifies the process together with the pid.
        job_id: The id of the job.
        state: The state of the job; ``unknown`` if its server does not know it.
        command: Its command line.
        age: Seconds since its start.
        memory: Bytes of memory.
        gpu_memory: Bytes of GPU memory; None if nvidia-smi does not report it.
        key: The key of the job in this checkout; None if unknown here.
    """

    server: str
    pid: int
    start_time: int
    job_id: str
    state: str
    command: str
    age: float
    memory: int
    gpu_memory: int | None = None
    key: int | None = None


@dataclass(frozen=True)
class OrphansAnswer:
    """The orphans found.

    Attributes:
        strays: The orphans on all servers that answered.
        places: The machine and boot of each server at that time.
        errors: The error of each server that could not answer.
    """

    strays: tuple[Orphan, ...]
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)


async def find_orphans(context: Context, servers: Sequence[str] = ()) -> OrphansAnswer:
    """Find the orphans on all servers in parallel; end none.

    A server that is no longer prepared is an error if it had jobs.
    """
    had_jobs = {job.server for job in context.registry.load()[0]}

    async def ask(server: str) -> tuple[dict[str, str], list[Orphan]]:
        try:
            answer = await call_until_answered(context.pool, context.config, server, "strays", {})
        except NotPreparedError as error:
            if server in had_jobs:
                raise unprepared(error, "cannot look for orphans there", "job-kill --orphans") from error
            return {}, []
        return _read_answer(server, answer)

    results = await on_every(_choose_servers(context, servers), ask)
    found = [orphan for _, orphans in results.values.values() for orphan in orphans]
    known = context.registry.find({orphan.job_id for orphan in found})
    return OrphansAnswer(
        tuple(replace(orphan, key=known[orphan.job_id].key) if orphan.job_id in known else orphan for orphan in found),
        {server: identity for server, (identity, _) in results.values.items()},
        results.errors,
    )


def _choose_servers(context: Context, names: Sequence[str]) -> tuple[str, ...]:
    """Return the selected servers, or the usual ones and those of earlier host lists that had jobs."""
    config = context.config
    listed = {name for name, server in config.servers.items() if server.is_listed}
    if names or config.listed or not listed:
        return choose_servers(config, names)
    earlier = sorted(listed & {job.server for job in context.registry.load()[0]})
    return (*config.usual_servers, *earlier) or choose_servers(config, ())


async def end_orphans(
    context: Context, found: OrphansAnswer, *, signal: str = "SIGTERM", grace: float = DEFAULT_GRACE
) -> dict[str, RemoteToolError]:
    """End the listed orphans and their descendants, except on a server that has restarted since then.

    Raises:
        UsageError: The signal or the grace period is invalid.
    """
    check_stop(signal, grace)
    by_server: dict[str, dict[str, list[list[int]]]] = defaultdict(lambda: defaultdict(list))
    for orphan in found.strays:
        by_server[orphan.server][orphan.job_id].append([orphan.pid, orphan.start_time])

    async def end(server: str) -> None:
        jobs = [{"id": job_id, "processes": pids} for job_id, pids in by_server[server].items()]
        request = {"jobs": jobs, "identity": dict(found.places[server]), "signal": signal, "grace": grace}
        within = longest_stop(grace)
        answer = await call_until_answered(context.pool, context.config, server, "end_strays", request, within=within)
        _raise_for_survivors(server, answer)
        unknown = {orphan.job_id for orphan in found.strays if orphan.server == server and orphan.state == UNKNOWN}
        context.registry.revise((job_id, become_lost) for job_id in unknown)

    return dict((await on_every(by_server, end)).errors)


def _raise_for_survivors(server: str, answer: Mapping[str, Any]) -> None:
    try:
        survivors = [_read_number(pid) for job in answer["jobs"] for pid in job["left"]]
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: cannot read what happened to its orphans ({error!r})", server=server) from error
    if survivors:
        pids = ", ".join(str(pid) for pid in survivors[:SHOWN_PIDS])
        raise JobError(
            f"{server}: some orphans cannot be killed: {pids}",
            server=server,
            hint=f"remote-tool run --server {server} --cmd 'ps aux'",
        )


def _read_answer(server: str, answer: Mapping[str, Any]) -> tuple[dict[str, str], list[Orphan]]:
    try:
        identity = {name: _read_text(answer["identity"][name]) for name in IDENTITY}
        return identity, [_read_orphan(server, entry) for entry in answer["strays"][:MOST_STRAYS]]
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: cannot read its list of orphans ({error!r:.200})", server=server) from error


def _read_orphan(server: str, entry: Mapping[str, Any]) -> Orphan:
    gpu_memory = entry["gpu_memory"]
    age = entry["age"]
    if not is_number(age):
        raise ValueError("an age that is not a number")
    return Orphan(
        server=server,
        pid=_read_number(entry["pid"]),
        start_time=_read_number(entry["start_time"]),
        job_id=_read_word(JOB, entry["job"]),
        state=_read_word(STATE, entry["state"]),
        command=_read_text(entry["command"]),
        age=float(age),
        memory=_read_number(entry["memory"]),
        gpu_memory=None if gpu_memory is None else _read_number(gpu_memory),
    )


def _read_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is not a number")
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError(f"{value!r:.40} is not short text")
    return value


def _read_word(form: re.Pattern[str], value: object) -> str:
    text = _read_text(value)
    if not form.fullmatch(text):
        raise ValueError(f"{text!r:.40} has the wrong format")
    return text
