"""End a job that waits in favor of one on another server; one that has begun stays."""

from __future__ import annotations

import os
import signal
import time

from remote_tool.agent import states
from remote_tool.agent.requests import Request, is_text
from remote_tool.agent.supervisor.tree import deliver
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.records import ENDED, STARTED, WITHDRAW, RecordError, is_job_id

# A supervisor without our signal looks every 10 seconds.
_SECONDS = 15.0
_PAUSE = 0.02


def withdraw(request: Request) -> None:
    """Answer op ``withdraw``: ask the supervisor of job ``id``, and wait until it has ended the job or begun it.

    Only the supervisor decides, so it is one or the other. The first request counts: ``ended.json`` has the server
    (``moved_to``), the id (``moved_as``) and the copy (``moved_copy``) of the one job that takes its place.
    """
    folders = request.folders()
    job_id = request.get("id", is_job_id)
    checks = (("moved_to", is_text), ("moved_as", is_job_id), ("moved_copy", is_text))
    record = {"id": job_id, **{name: request.get(name, check) for name, check in checks}}
    try:
        folder = job_folder.open_job(job_folder.open_jobs_folder(folders.jobs), job_id)
        if folder is None:
            raise RequestError("there is no such job on this server")
        job_status = states.judge(folder, job_id, states.scan())
        if job_status.state == "queued":
            job_folder.write_record(folder, WITHDRAW, record)
            if job_status.supervisor is not None:
                deliver(job_status.supervisor, signal.SIGUSR1)
            _wait(folder)
        ended = job_folder.read_record(folder, ENDED, job_id) or {}
    except RecordError as error:
        raise RequestError(str(error)) from error
    os.close(folder)
    request.answer({"moved_as": ended.get("moved_as") or "", "now": time.time()})


def _wait(folder: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if any(job_folder.exists(folder, name) for name in (ENDED, STARTED)):
            return
        time.sleep(_PAUSE)
