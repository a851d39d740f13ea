"""Report which processes an MPI launch wants started on the other nodes, as written to the first node's job folder."""

from __future__ import annotations

import os
import time

from remote_tool.agent.requests import Request, client_is_gone
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.records import ENDED, RecordError, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

_WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.02


def proxies(request: Request) -> None:
    """Answer op ``proxies``: wait until a job's mpiexec has written its proxies, or the job has ended."""
    job_id = request.get("id", is_job_id)
    jobs = job_folder.open_jobs_folder(request.folders().jobs)
    folder = job_folder.open_job(jobs, job_id)
    if folder is None:
        raise RequestError("There is no such job on this server")
    try:
        request.answer(_wait(folder))
    except RecordError as error:
        raise RequestError(str(error)) from error
    finally:
        os.close(folder)


def _wait(folder: int) -> Dict[str, Any]:
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        text = job_folder.read_bytes(folder, job_folder.PROXIES_FILE)
        if text is not None:
            return {"proxies": text.decode("utf-8", "replace").splitlines()}
        if job_folder.exists(folder, ENDED) or client_is_gone(_LOOK_SECONDS):
            break
    return {"proxies": None, "ended": job_folder.exists(folder, ENDED)}
