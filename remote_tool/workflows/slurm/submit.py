"""Submit jobs to Slurm: each gets its folder first, and one batch job starts those that belong together."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from remote_tool.errors import ConnectError, ConnectionLostError, JobError, RemoteCommandError
from remote_tool.redaction import redact
from remote_tool.workflows.agent_client import (
    PAUSES,
    NoAnswerError,
    NotPreparedError,
    call_until_answered,
    lost_answer,
)
from remote_tool.workflows.agent_program import source_archive
from remote_tool.workflows.slurm import step_program
from remote_tool.workflows.slurm.look import program_script, remove_leftovers
from remote_tool.workflows.slurm.states import BY
from remote_tool.workflows.slurm.step_program import PORT_FORM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.config.slurm import Slurm
    from remote_tool.transport.host import Host
    from remote_tool.transport.pool import HostPool

SECONDS = 150.0
# Of a start request, what the agent on the node needs as well.
_KEPT = ("min_free",)


async def start(pool: HostPool, config: Config, server: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer op ``start``: have the agent make the folders of the jobs, and submit them."""
    asked = [{**job, "held_by": BY, "on_empty": None} for job in request["jobs"]]
    folders = [{**job, "watch": None} for job in asked]
    answer = await call_until_answered(pool, config, server, "hold", {**request, "jobs": folders, "by": BY})
    entries = {str(entry.get("id")): entry for entry in answer.get("jobs") or () if isinstance(entry, dict)}
    ready = [job for job in asked if _may_begin(entries.get(job["id"]))]
    try:
        for batch in _batches(ready):
            # Of a submission that was cut off, some jobs may not know yet that it succeeded.
            if not all(_has_reference(entries[job["id"]]) for job in batch):
                await _submit(pool, config, server, batch, request, entries)
    except (ConnectError, NotPreparedError) as error:
        # Also one that could not be made again: what was asked for before may have been done.
        raise lost_answer(server, "start", error) from None
    return {**answer, "jobs": list(entries.values())}


async def _submit(
    pool: HostPool,
    config: Config,
    server: str,
    batch: Sequence[dict[str, Any]],
    request: Mapping[str, Any],
    entries: Mapping[str, dict[str, Any]],
) -> None:
    """Submit a batch job, and put into the answers about its jobs what Slurm says."""
    slurm = config.servers[server].slurm
    assert slurm is not None
    try:
        reference = await _submit_until_answered(pool, config, server, _submission(config, slurm, batch, request))
    except JobError as error:
        if isinstance(error, NoAnswerError):
            raise
        ends = [{"id": job["id"], "reason": f"not submitted: {error.message}", "failed": True} for job in batch]
        await call_until_answered(pool, config, server, "settle", {"jobs": ends})
        await remove_leftovers(await pool.host(server), config)
        for job in batch:
            entries[job["id"]].update(error=error.message, hint=error.hint, begun=False)
    else:
        for job in batch:
            entries[job["id"]].update(state="queued", reason=f"Slurm job {reference}")


def _may_begin(entry: Mapping[str, Any] | None) -> bool:
    return entry is not None and not entry.get("error") and not entry.get("ended")


def _has_reference(entry: Mapping[str, Any]) -> bool:
    held = entry.get("held")
    return isinstance(held, dict) and bool(held.get("reference"))


def _batches(jobs: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the jobs of each batch job: the nodes of a launch, the tasks of an array, or one."""
    launches: dict[str, list[dict[str, Any]]] = defaultdict(list)
    arrays: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for job in jobs:
        if _meets(job):
            launches[job["launch_id"]].append(job)
        else:
            kind = (job.get("launch_id"), job.get("gpu_count"), job.get("slots"), *(job.get("after") or ()))
            arrays[kind if job.get("launch_id") else (job["id"],)].append(job)
    return [sorted(nodes, key=lambda job: job["node_rank"] or 0) for nodes in launches.values()] + list(arrays.values())


def _meets(job: Mapping[str, Any]) -> bool:
    """Return whether a job is a node of a launch, which needs an address of the first one."""
    return bool(job.get("watch")) or _port_of(job) is not None


def _port_of(job: Mapping[str, Any]) -> int | None:
    """Return the port that a node of a launch needs on the first one, 0 for a free one; None if it needs none."""
    texts = (job["command"], *job["environment"].values())
    found = next((match for match in map(PORT_FORM.search, texts) if match), None)
    return None if found is None else int(found[1] or 0)


def _submission(
    config: Config, slurm: Slurm, jobs: Sequence[dict[str, Any]], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the request for the program that submits one batch job."""
    first = jobs[0]
    meets = _meets(first)
    array = "" if meets else _array(jobs)
    words = slurm.words(nodes=len(jobs) if meets else 1, gpus=first.get("gpu_count") or 0)
    name = first.get("name") or config.name.rpartition("/")[2]
    folders = {
        "project": config.remote.project,
        "jobs_folder": config.remote.jobs,
        "scripts_folder": config.remote.scripts,
    }
    own_request = {
        "jobs": jobs,
        "jobs_folder": config.remote.jobs,
        "folders": folders,
        "start": {key: request[key] for key in _KEPT if key in request},
        "meets": meets,
        "port": _port_of(first) or 0,
    }
    return {
        "name": first["id"],
        "words": [*words, f"--job-name={name}", f"--comment={first['id']} {first.get('launch_id') or ''}".rstrip()],
        "array": array,
        "after": list(first.get("after") or ()),
        "after_any": bool(first.get("after_any")),
        "jobs_folder": config.remote.jobs,
        "jobs": [job["id"] for job in jobs],
        "request": own_request,
        "step": inspect.getsource(step_program),
        "agent": f"supervisor-{source_archive()[0]}",
    }


async def _submit_until_answered(pool: HostPool, config: Config, server: str, submission: Mapping[str, Any]) -> str:
    """Submit a batch job, and return its id; if the connection is lost, try again, as nothing is submitted twice.

    Raises:
        JobError: Slurm refuses it.
        NoAnswerError: Whether it was submitted is unknown.
        ConnectError: The connection stays lost.
    """
    for pause in PAUSES:
        try:
            return _reference(server, await _run_program(await pool.host(server), config, submission))
        except ConnectionLostError:
            await asyncio.sleep(pause)
    return _reference(server, await _run_program(await pool.host(server), config, submission))


def _array(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return the tasks of an array, with how many may run at once; empty for a single job."""
    slots = jobs[0].get("slots")
    most = f"%{slots}" if slots and slots < len(jobs) else ""
    return f"0-{len(jobs) - 1}{most}" if len(jobs) > 1 else ""


async def _run_program(host: Host, config: Config, submission: Mapping[str, Any]) -> dict[str, Any]:
    script = program_script(config.for_server(host.name))
    try:
        done = await host.run(
            script, stdin=json.dumps(submission).encode(), timeout=SECONDS, check=False, label="sbatch"
        )
    except RemoteCommandError as error:
        raise NoAnswerError(error.message, hint=error.hint, server=host.name) from error
    _, _, text = done.stdout.decode(errors="replace").rpartition("\0")
    try:
        answer = json.loads(text)
    except ValueError:
        said = redact(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])[:500]
        raise NoAnswerError(f"{host.name}: the submission gave no answer: {said}", server=host.name) from None
    return answer if isinstance(answer, dict) else {}


def _reference(server: str, answer: Mapping[str, Any]) -> str:
    if refused := answer.get("refused"):
        hint = f"slurm: of {server} in .remote/configs.yaml; remote-tool check --server {server} compares it"
        raise JobError(redact(str(refused)), hint=hint, server=server)
    reference = answer.get("reference")
    if not isinstance(reference, str) or not reference.isdigit():
        raise NoAnswerError(f"{server}: {answer.get('unknown') or 'Slurm gave no id'}", server=server)
    return reference
