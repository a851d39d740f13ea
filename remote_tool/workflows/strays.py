"""job-kill --strays: processes that jobs have left on the servers, found and ended."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, RemoteToolError, SomeServersFailedError
from remote_tool.jobs.job import DEFAULT_GRACE
from remote_tool.transport.pool import on_every
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.stop_jobs import check_wish
from remote_tool.workflows.stopping import longest_stop
from remote_tool.workflows.supervisor import NotPreparedError, call_until_answered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.workflows.context import Context

PLACE = ("hostname", "machine_id", "boot_id", "pid_namespace")
JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
STATE = re.compile("[a-z]{1,20}")
LONGEST_TEXT = 1000
MOST_STRAYS = 2000
LARGEST = 2**62
SHOWN_PIDS = 20


@dataclass(frozen=True)
class Stray:
    """A process that carries the mark of a job, or descends from one that does, and that nothing looks after.

    Attributes:
        start_time: In clock ticks since the server's boot; it and the pid are whom we mean.
        job_id: Whose it was.
        key: The job's key in this checkout; None when it is not known here.
        state: Of that job; ``unknown`` when its server does not know it.
        age: Seconds.
        memory: Bytes.
        gpu_memory: Bytes; None when nvidia-smi does not tell.
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
class StraysAnswer:
    """What was found.

    Attributes:
        strays: Of all servers that answered.
        places: Which machine and which boot of it each server was then.
        errors: The error of each server that could not answer.
    """

    strays: tuple[Stray, ...]
    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 when every server answered."""
        return SomeServersFailedError(self.errors, list(self.places)).exit_code if self.errors else 0


async def find_strays(context: Context, servers: Sequence[str] = ()) -> StraysAnswer:
    """Ask all servers at once; nothing is ended."""

    async def ask(server: str) -> tuple[dict[str, str], list[Stray]]:
        try:
            answer = await call_until_answered(context.pool, context.config, server, "strays", {})
        except NotPreparedError:
            return {}, []
        return _read_answer(server, answer)

    results = await on_every(_servers_to_ask(context, servers), ask)
    found = [stray for _, strays in results.values.values() for stray in strays]
    known = context.registry.find({stray.job_id for stray in found})
    return StraysAnswer(
        tuple(_with_key(stray, known[stray.job_id].key) if stray.job_id in known else stray for stray in found),
        {server: place for server, (place, _) in results.values.items()},
        results.errors,
    )


def _servers_to_ask(context: Context, names: Sequence[str]) -> tuple[str, ...]:
    """Return the servers that are meant: without a choice also those of earlier host lists that had jobs."""
    config = context.config
    listed = {name for name, server in config.servers.items() if server.is_listed}
    if names or config.listed or not listed:
        return choose_servers(config, names)
    earlier = sorted(listed & {job.server for job in context.registry.load()[0]})
    return (*config.usual_servers, *earlier) or choose_servers(config, ())


async def end_strays(
    context: Context, found: StraysAnswer, *, signal: str = "SIGTERM", grace: float = DEFAULT_GRACE
) -> dict[str, RemoteToolError]:
    """End those that were found, with all that belongs to them; a server that was started anew since ends nothing.

    Raises:
        UsageError: It is no signal, or no time to end.
    """
    check_wish(signal, grace)
    by_server: dict[str, dict[str, list[list[int]]]] = defaultdict(lambda: defaultdict(list))
    for stray in found.strays:
        by_server[stray.server][stray.job_id].append([stray.pid, stray.start_time])

    async def end(server: str) -> None:
        jobs = [{"id": job_id, "processes": pids} for job_id, pids in by_server[server].items()]
        wish = {"jobs": jobs, "identity": dict(found.places[server]), "signal": signal, "grace": grace}
        within = longest_stop(grace)
        answer = await call_until_answered(context.pool, context.config, server, "end_strays", wish, within=within)
        _raise_for_survivors(server, answer)

    return dict((await on_every(by_server, end)).errors)


def _raise_for_survivors(server: str, answer: Mapping[str, Any]) -> None:
    try:
        left = [_whole(pid) for job in answer["jobs"] for pid in job["left"]]
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: what became of its strays cannot be read ({error!r})", server=server) from error
    if left:
        pids = ", ".join(str(pid) for pid in left[:SHOWN_PIDS])
        raise JobError(
            f"{server}: some strays do not die: {pids}",
            server=server,
            hint=f"remote-tool run --server {server} --cmd 'ps aux'",
        )


def _read_answer(server: str, answer: Mapping[str, Any]) -> tuple[dict[str, str], list[Stray]]:
    try:
        place = {name: _text(answer["identity"][name]) for name in PLACE}
        return place, [_read_stray(server, entry) for entry in answer["strays"][:MOST_STRAYS]]
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: its strays cannot be read ({error!r:.200})", server=server) from error


def _read_stray(server: str, entry: Mapping[str, Any]) -> Stray:
    gpu_memory = entry["gpu_memory"]
    age = entry["age"]
    if isinstance(age, bool) or not isinstance(age, int | float) or not math.isfinite(age):
        raise ValueError("an age that is no number")
    return Stray(
        server=server,
        pid=_whole(entry["pid"]),
        start_time=_whole(entry["start_time"]),
        job_id=_like(JOB, entry["job"]),
        state=_like(STATE, entry["state"]),
        command=_text(entry["command"]),
        age=float(age),
        memory=_whole(entry["memory"]),
        gpu_memory=None if gpu_memory is None else _whole(gpu_memory),
    )


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError(f"{value!r:.40} is no short text")
    return value


def _like(form: re.Pattern[str], value: object) -> str:
    text = _text(value)
    if not form.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not of its form")
    return text


def _with_key(stray: Stray, key: int) -> Stray:
    return replace(stray, key=key)
