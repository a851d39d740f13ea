"""What Slurm says about jobs, together with their own records; an end without a record is recorded."""

from __future__ import annotations

import inspect
import json
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from remote_tool.errors import RemoteCommandError
from remote_tool.paths import shell_path
from remote_tool.redaction import redact
from remote_tool.workflows.agent_client import call_until_answered
from remote_tool.workflows.slurm import submit_program
from remote_tool.workflows.slurm.states import (
    BY,
    FORMAT,
    BatchJob,
    Verdict,
    is_ended_from_outside,
    judge,
    parse_accounting,
    parse_queue,
)
from remote_tool.workflows.slurm.submit_program import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool

SECONDS = 30.0
LONGEST_PROBLEM = 160
# Until a submission has told its jobs their ids.
SUBMISSION_SECONDS = 300.0
# A login may have variables that let Slurm's programs look elsewhere, or show less.
FIND_PROGRAMS = (
    f'PATH="$PATH:{":".join(PROGRAMS)}"\n'
    "unset SLURM_CLUSTERS SQUEUE_ACCOUNT SQUEUE_LICENSES SQUEUE_NAMES SQUEUE_PARTITION SQUEUE_QOS\n"
)
# -a: also in partitions that are hidden; -r: one line for each task of an array.
_SQUEUE = f"SLURM_TIME_FORMAT=%s squeue -h -a -r -u \"$(id -u)\" -t all -o '{FORMAT}'"
# Batch jobs that were over when what was written for them was removed.
_removed: WeakKeyDictionary[Host, set[str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Queue:
    """The batch jobs of this user, by id, or why they are unknown.

    Attributes:
        jobs: By id.
        problem: Why they are unknown; empty if they are known.
        now: The time on the server, in seconds since the epoch; None if unknown.
    """

    jobs: Mapping[str, BatchJob]
    problem: str = ""
    now: float | None = None

    def is_submitted(self, entry: Mapping[str, Any]) -> bool:
        """Return whether a batch job for a job that does not know it yet waits or runs."""
        names = {entry.get("id"), entry["spec"].get("launch_id")} - {None, ""}
        return any(names & set(batch.comment.split()) for batch in self.jobs.values() if not batch.is_over)

    def find(self, held: Mapping[str, Any]) -> BatchJob | None:
        """Return the batch job of a job that is held."""
        return self.jobs.get(str(held.get("reference")))


async def status(pool: HostPool, config: Config, server: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer op ``status``: what the agent says, with what Slurm says about jobs that have not ended."""
    answer = await call_until_answered(pool, config, server, "status", request)
    entries = held_entries(answer)
    if not entries:
        return {**answer}
    host = await pool.host(server)
    # Only now: a job that has begun since Slurm was asked would look as if Slurm had put it back.
    queue = await read_queue(host)
    if queue.problem:
        return _without_slurm(answer, queue.problem)
    missing = [entry for entry in entries if not entry.get("ended") and queue.find(entry["held"]) is None]
    if missing:
        queue = await ask_accounting(host, queue, [str(entry["held"].get("reference")) for entry in missing])
    now = answer.get("now")
    queue = replace(queue, now=float(now) if isinstance(now, (int, float)) else None)
    judged, verdicts = judge_all(entries, queue)
    if verdicts:
        asked = {"jobs": [verdict.as_request(job_id) for job_id, verdict in verdicts.items()]}
        settled = await call_until_answered(pool, config, server, "settle", asked)
        again, _ = judge_all(held_entries(settled), queue)
        judged |= again
        if any(verdict.end for verdict in verdicts.values()):
            await remove_leftovers(host, config)
    ended = {batch.reference for entry in entries if (batch := _ended_by_slurm(entry, queue)) is not None}
    if ended - _removed.setdefault(host, set()):
        # Their own task has kept what Slurm might have needed to begin them again.
        _removed[host] |= ended
        await remove_leftovers(host, config)
    return {**answer, "jobs": [judged.get(str(entry.get("id")), entry) for entry in _entries(answer)]}


def judge_all(entries: Iterable[Mapping[str, Any]], queue: Queue) -> tuple[dict[str, Any], dict[str, Verdict]]:
    """Return the answers about jobs by id, and what is to be recorded about some."""
    judged, verdicts = {}, {}
    for entry in entries:
        job_id = str(entry["id"])
        batch = queue.find(entry["held"])
        if batch is not None:
            judged[job_id], verdict = judge(entry, batch)
        else:
            judged[job_id], verdict = {**entry, "ran_here": True}, _verdict_without(entry, queue)
        if verdict is not None:
            verdicts[job_id] = verdict
    return judged, verdicts


def _ended_by_slurm(entry: Mapping[str, Any], queue: Queue) -> BatchJob | None:
    """Return the batch job of a job with a record of its end, if Slurm has ended it and it is over."""
    batch = queue.find(entry["held"])
    if batch is None or not batch.is_over or not entry.get("ended"):
        return None
    return batch if is_ended_from_outside(entry) else None


def _verdict_without(entry: Mapping[str, Any], queue: Queue) -> Verdict | None:
    """Return what is to be recorded about a job that Slurm does not know."""
    if entry.get("ended"):
        return None
    reference = entry["held"].get("reference")
    if reference and not entry.get("started"):
        return Verdict(f"Slurm no longer knows its job {reference}, which never began", "killed")
    if reference:
        return Verdict(f"Slurm no longer knows its job {reference}, and it left no record of its end", "failed")
    received_at = entry["spec"].get("received_at")
    is_known = isinstance(received_at, (int, float)) and queue.now is not None and not queue.is_submitted(entry)
    is_old = is_known and queue.now - received_at > SUBMISSION_SECONDS
    return Verdict("it was never submitted to Slurm", "failed") if is_old else None


async def read_queue(host: Host) -> Queue:
    """Ask Slurm for all batch jobs of this user, which it knows for some minutes after their ends."""
    try:
        done = await host.run(FIND_PROGRAMS + _SQUEUE, timeout=SECONDS, check=False, label="squeue")
    except RemoteCommandError as error:
        return Queue({}, error.message.removeprefix(f"{host.name}: "))
    if not done.ok:
        said = redact(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        return Queue({}, f"squeue: {said or 'failed'}"[:LONGEST_PROBLEM])
    return Queue(parse_queue(done.stdout.decode(errors="replace")))


async def ask_accounting(host: Host, queue: Queue, references: Sequence[str]) -> Queue:
    """Ask Slurm's accounting, where there is one, about batch jobs that have left the queue."""
    missing = [reference for reference in references if reference.replace("_", "").isdigit()]
    if not missing:
        return queue
    words = f"sacct -n -X -P -o JobID,State -j {shlex.quote(','.join(missing))}"
    try:
        done = await host.run(f"{FIND_PROGRAMS}{words} 2>/dev/null", timeout=SECONDS, check=False, label="sacct")
    except RemoteCommandError as error:
        return Queue({}, error.message.removeprefix(f"{host.name}: "))
    return Queue({**parse_accounting(done.stdout.decode(errors="replace")), **queue.jobs})


def _without_slurm(answer: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """Return an answer in which the state of jobs that have not ended is unknown."""
    bad = list(answer.get("bad") or [])
    jobs = []
    for entry in _entries(answer):
        if _is_held(entry) and not entry.get("ended"):
            bad.append({"name": entry.get("id"), "why": f"Slurm does not answer: {problem}"})
        else:
            jobs.append(entry)
    return {**answer, "jobs": jobs, "bad": bad}


def _entries(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = answer.get("jobs")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


async def remove_leftovers(host: Host, config: Config) -> None:
    """Remove what was written for batch jobs that are over, as variables of their jobs are in it."""
    script = program_script(config.for_server(host.name))
    request = {"only_remove": True, "jobs_folder": config.remote.jobs}
    with suppress(RemoteCommandError):
        await host.run(
            script, stdin=json.dumps(request).encode(), timeout=SECONDS, check=False, label="remove leftovers"
        )


def program_script(config: Config) -> str:
    """Return the script that runs the program of submissions on a login node, with a request on stdin."""
    source = shlex.quote(inspect.getsource(submit_program))
    return f"cd {shell_path(config.remote.scripts)} || exit\nexec ./python -I -S -c {source}\n"


def held_entries(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answers about jobs that Slurm starts; what is malformed is left to the parser of all answers."""
    return [entry for entry in _entries(answer) if _is_held(entry)]


def _is_held(entry: Mapping[str, Any]) -> bool:
    held, spec = entry.get("held"), entry.get("spec")
    records = [entry.get("started"), entry.get("ended")]
    is_well_formed = all(record is None or isinstance(record, dict) for record in records) and isinstance(spec, dict)
    return is_well_formed and isinstance(held, dict) and held.get("by") == BY and isinstance(entry.get("state"), str)
