"""Send the files that a job's folder keeps beside its output: stacks, the log of on_end, and NCCL's flight records."""

from __future__ import annotations

import os

from remote_tool.agent.requests import Request, is_list
from remote_tool.protocol import job_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

_PIECE = 512 * 1024


def kept(request: Request) -> None:
    """Answer op ``kept``: the kept files of each job that have another size than the client's, in pieces."""
    jobs = job_folder.open_jobs_folder(request.folders().jobs)
    for asked in request.get("jobs", is_list):
        job_id = str(asked.get("id")) if isinstance(asked, dict) else ""
        folder = job_folder.open_job(jobs, job_id)
        if folder is None:
            continue
        try:
            _send_all(request, job_id, folder, asked.get("have") or {})
        finally:
            os.close(folder)
    request.answer({"done": True})


def _send_all(request: Request, job_id: str, folder: int, have: Dict[str, Any]) -> None:
    for name in sorted(filter(job_folder.is_kept, os.listdir(folder)))[: job_folder.MOST_KEPT]:
        try:
            file = job_folder.open_file_beneath(folder, name)
        except OSError:
            # Replaced by something that is not a plain file.
            continue
        try:
            size = os.fstat(file).st_size
            if have.get(name) != size:
                _send(request, {"job": job_id, "name": name, "size": size}, file)
        finally:
            os.close(file)


def _send(request: Request, header: Dict[str, Any], file: int) -> None:
    offset, size = 0, header["size"]
    is_too_large = size > job_folder.LARGEST_KEPT
    while True:
        body = b"" if is_too_large else os.pread(file, min(_PIECE, size - offset), offset)
        request.answer(header, body)
        offset += len(body)
        if not body or offset >= size:
            return
