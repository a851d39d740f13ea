"""Validate a job in a start request: its record, command and environment."""

from __future__ import annotations

import os
import time

from remote_tool.agent import activation
from remote_tool.agent.activation import Activation, Origin
from remote_tool.agent.launch.cause import Membership, read_membership
from remote_tool.agent.proc import processes
from remote_tool.agent.requests import Folders, is_text
from remote_tool.agent.supervisor.limits.on_empty import read_on_empty
from remote_tool.agent.supervisor.on_end import read_on_end
from remote_tool.agent.supervisor.plan import RequestedJob
from remote_tool.agent.terminal import device, inside
from remote_tool.protocol import job_folder, limits
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.job_fields import REQUEST_FIELDS
from remote_tool.protocol.limits import DEFAULT_LOG_LIMIT, SMALLEST_LOG_LIMIT, LimitError
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import (
    COMMAND_LIMIT,
    SCHEMA,
    SPEC,
    RecordError,
    check_record,
    encode_record,
    is_job_id,
)
from remote_tool.protocol.terminal import LOGIN_SHELL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from remote_tool.agent.frozen.copies import Copies, Copy
    from remote_tool.agent.supervisor.plan import OnEmpty, OnEnd, QueueRequest
    from remote_tool.agent.wrapper.wrapper import CommandWrapper
    from remote_tool.protocol.records import Record


# The folder of the start-up hook with which Python shows its stacks.
_HOOK = os.fsencode(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook"))
# The client hides these too.
_SHORTEST_HIDDEN = 8


def check_job(
    job: object, active: Activation, folders: Folders, copies: Optional[Copies] = None, held: Optional[Record] = None
) -> RequestedJob:
    """Validate one job of a start request; RequestError when it cannot be started as requested.

    ``held`` is the record of a job that was held and is started now: it runs in the copy that was made for it.
    """
    if not isinstance(job, dict) or not is_job_id(job.get("id")):
        raise RequestError("The request contains a job without a valid id")
    command = job.get("command")
    if not isinstance(command, str):
        raise RequestError(f"Job {job['id']}: its command is not text")
    user = activation.with_home(job.get("environment") or {})
    activation.check_user(user)
    copy = None if copies is None else _copy_for(copies, job, held)
    project = folders.project if copy is None else copy.code
    workdir = folders._replace(project=project).check_workdir(job.get("workdir", ""))
    origin = Origin(project, job["id"], str(job.get("server")), workdir)
    spec = {
        **{each.name: job.get(each.name, None if each.is_required else each.default) for each in REQUEST_FIELDS},
        "schema": SCHEMA,
        "id": job["id"],
        "command": command[:COMMAND_LIMIT],
        "copy": copy.name if copy else "",
        "environment_hash": copy.environment_hash if copy else "",
        "command_length": len(command),
        "environment_names": sorted(user),
        "received_at": time.time(),
        "place": processes.place(),
    }
    try:
        record = check_record(SPEC, spec, job["id"])
        _check_limits(record, command, user)
    except (RecordError, LimitError) as error:
        raise RequestError(f"Job {job['id']}: {error}") from error
    begins_in = _launch_environment(job.get("entry"), active, user, origin, folders, record)
    log_limit = _read_log_limit(job)
    setup = _read_setup(job)
    hidden = _hidden(user, record)
    membership = _read_membership(job.get("watch"), record, hidden)
    wrapped = (begins_in.command_wrapper, begins_in.script)
    if record["terminal"] == limits.SHELL:
        command = LOGIN_SHELL
    ends = _read_ends(job, record)
    # One that is held waits elsewhere.
    queue = None if job.get("held_by") else _read_queue(job, record)
    inside = begins_in.environment
    return RequestedJob(record, command, inside, membership, log_limit, *wrapped, setup, *ends, queue, copy, hidden)


def _copy_for(copies: Copies, job: Dict[str, Any], held: Optional[Record]) -> Optional[Copy]:
    asked = job.get("copy") if held is None else held["copy"]
    return copies.copy_for(job["id"], asked, job.get("snapshot"), is_held=held is not None)


def _hidden(user: Dict[str, str], spec: Record) -> Tuple[str, ...]:
    """Return the values of --env and env: that are too long to occur in a message by chance, the longest first."""
    # Either is None if there are too many names for a record.
    known = [spec["variables"], spec["configured_variables"]]
    names = set(user) if None in known else {name for each in known for name in each}
    values = {user[name] for name in names if len(user.get(name, "")) >= _SHORTEST_HIDDEN}
    return tuple(sorted(values, key=len, reverse=True))


def _read_ends(job: Dict[str, Any], spec: Record) -> Tuple[Optional[OnEnd], Optional[OnEmpty]]:
    """Return the commands for the end of the job."""
    if spec["retries"] and (job.get("watch") is not None or spec["terminal"]):
        raise RequestError(f"Job {spec['id']}: a node of a launch, or a job on a terminal, has no retries")
    on_end, on_empty = job.get("on_end"), job.get("on_empty")
    return (
        None if on_end is None else read_on_end(on_end, spec["name"] or ""),
        None if on_empty is None else read_on_empty(on_empty),
    )


def _read_queue(job: Dict[str, Any], spec: Record) -> Optional[QueueRequest]:
    if not spec["gpu_count"] and not spec["after"] and spec["slots"] is None:
        return None
    from remote_tool.agent.supervisor.queue import read_queue  # noqa: PLC0415 - few jobs wait

    return read_queue(job, spec)


def _read_setup(job: Dict[str, Any]) -> str:
    setup = job.get("setup") or ""
    if not is_text(setup):
        raise RequestError(f"Job {job['id']}: its setup script is not text")
    return str(setup)


def _read_log_limit(job: Dict[str, Any]) -> int:
    log_limit = job.get("log_limit") or DEFAULT_LOG_LIMIT
    if type(log_limit) is not int or log_limit < SMALLEST_LOG_LIMIT:
        raise RequestError(f"Job {job['id']}: its log_limit cannot be {log_limit!r:.40}")
    return log_limit


def _check_limits(spec: Record, command: str, user: Dict[str, str]) -> None:
    """Refuse values that the client would reject in a list of jobs, or that the kernel would reject."""
    limits.check_command(command)
    limits.check_tags(spec["tags"])
    limits.check_environment(user)
    for field in REQUEST_FIELDS:
        if not field.fits(spec[field.name]):
            raise LimitError(field.name, f"cannot be {spec[field.name]!r:.60}")
    size = len(encode_record(spec))
    if size > job_folder.RECORD_LIMIT:
        raise LimitError(SPEC, f"would have {size:,} bytes; at most {job_folder.RECORD_LIMIT:,} are possible")


class LaunchEnvironment(NamedTuple):
    """A command's environment, or that of its launch command and the variables set inside."""

    environment: Dict[bytes, bytes]
    command_wrapper: Optional[CommandWrapper] = None
    script: bytes = b""


def _launch_environment(
    entry: Any,  # noqa: ANN401 - from the request, checked where it is read
    active: Activation,
    user: Dict[str, str],
    origin: Origin,
    folders: Folders,
    spec: Record,
) -> LaunchEnvironment:
    if entry is None:
        environment = activation.build_environment(os.environb, active, user, origin)
        # First on the path: our sitecustomize then loads the user's own.
        environment[b"PYTHONPATH"] = b":".join((_HOOK, environment[b"PYTHONPATH"]))
        if spec["terminal"]:
            device.complete(environment)
        return LaunchEnvironment(environment)
    from remote_tool.agent.wrapper import container, wrapper  # noqa: PLC0415 - few jobs begin behind a launch command

    command_wrapper = wrapper.read_wrapper(entry, f"remote-tool-{origin.job_id}", folders)
    assert command_wrapper is not None
    wrapper.make_home(command_wrapper)
    environment = wrapper.outside_environment(os.environb)
    container.wake_engine(command_wrapper, environment)
    # If the project's folder is missing inside, Python ignores the path of the hook.
    settings = wrapper.settings_for(command_wrapper, active, user, origin).with_first("PYTHONPATH", os.fsdecode(_HOOK))
    folder, on_terminal = f"{folders.jobs}/{origin.job_id}", bool(spec["terminal"])
    gpus = spec["gpu_count"] or 0
    script = wrapper.job_script(command_wrapper, settings, folder, spec["nice"], on_terminal=on_terminal, gpus=gpus)
    if on_terminal:
        words = inside.words_for(command_wrapper, f"{folder}/{job_folder.TERMINAL_SCRIPT}", script)
        command_wrapper = type(command_wrapper)(words, *command_wrapper[1:])
    return LaunchEnvironment(environment, command_wrapper, script)


def _read_membership(
    watch: Any,  # noqa: ANN401 - from the request, checked here
    spec: Record,
    hidden: Tuple[str, ...],
) -> Optional[Membership]:
    """Return a node's place in its launch; its secret is never written to a file."""
    if watch is None:
        return None
    try:
        return read_membership(watch, spec["node_rank"], spec["rank_offset"])._replace(hidden=hidden)
    except ValueError as error:
        raise RequestError(f"Job {spec['id']}: {error}") from error
