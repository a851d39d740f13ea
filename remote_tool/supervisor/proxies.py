"""What the first node of an MPI launch wants started on the others: its script leaves it in the job's folder."""

from __future__ import annotations

import os
import time

from . import job_files
from .records import ENDED, RecordError, is_job_id
from .requests import Request, RequestError, client_is_gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

# Written by the script of the first node when mpiexec has said all.
PROXIES_FILE = "mpi-proxies"
_WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.02


def proxies(request: Request) -> None:
    """Answer op ``proxies``: wait until a job's mpiexec has said what it wants, or the job has ended."""
    job_id = request.get("id", is_job_id)
    jobs = job_files.open_jobs_folder(request.folders().jobs)
    folder = job_files.open_job(jobs, job_id)
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
        text = job_files.read_bytes(folder, PROXIES_FILE)
        if text is not None:
            return {"proxies": text.decode("utf-8", "replace").splitlines()}
        if job_files.exists(folder, ENDED) or client_is_gone(_LOOK_SECONDS):
            break
    return {"proxies": None, "ended": job_files.exists(folder, ENDED)}
