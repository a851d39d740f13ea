"""Give up starts that never arrived: their ids are taken, so that one that comes later starts nothing."""

from __future__ import annotations

import fcntl
import time

from remote_tool.agent.jobs import new_folder
from remote_tool.agent.proc import processes
from remote_tool.agent.requests import Request, is_list
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.job_fields import REQUEST_FIELDS
from remote_tool.protocol.limits import NEVER_ARRIVED
from remote_tool.protocol.records import (
    COMMAND_LIMIT,
    SCHEMA,
    SPEC,
    RecordError,
    check_record,
    end_without_record,
    is_job_id,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from remote_tool.protocol.records import Record


def give_up(request: Request) -> None:
    """Answer op ``give_up``: let ``jobs``, as a client has recorded them, have failed unless they are here.

    A start renames a job's folder into its place, and so does this: exactly one of the two succeeds.
    """
    folders = request.folders()
    specs = [_spec_of(job) for job in request.get("jobs", is_list)]
    jobs = job_folder.open_jobs_folder(folders.jobs, create=True)
    assert jobs is not None
    try:
        fcntl.flock(jobs, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError("remote-tool is being removed from this server") from None
    except OSError:
        pass  # a file system without locks
    ends = {spec["id"]: end_without_record(spec["id"], NEVER_ARRIVED, killed=False) for spec in specs}
    given_up = [spec["id"] for spec in specs if new_folder.give_up(jobs, spec, ends[spec["id"]])]
    request.answer({"given_up": given_up, "folder_id": job_folder.make_folder_id(jobs), "now": time.time()})


def _spec_of(job: Any) -> Record:  # noqa: ANN401 - from the request, checked here
    """Return the record of a job that never was here; RequestError if it is malformed."""
    if not isinstance(job, dict) or not is_job_id(job.get("id")):
        raise RequestError("The request contains a job without a valid id")
    spec: Dict[str, Any] = {
        **{each.name: job.get(each.name, None if each.is_required else each.default) for each in REQUEST_FIELDS},
        "schema": SCHEMA,
        "command": str(job.get("command"))[:COMMAND_LIMIT],
        "command_length": len(str(job.get("command"))),
        "environment_names": [],
        "received_at": time.time(),
        "place": processes.place(),
    }
    try:
        return check_record(SPEC, spec, job["id"])
    except RecordError as error:
        raise RequestError(f"Job {job['id']}: {error}") from error
