"""Show where the Python processes of jobs are."""

from __future__ import annotations

import os
from contextlib import suppress

from remote_tool.agent import states
from remote_tool.agent.proc.py_spy import Tracer, find_py_spy
from remote_tool.agent.proc.stacks import Stack, rank_of, store, take
from remote_tool.agent.requests import Request, is_flag, is_list
from remote_tool.protocol import job_folder
from remote_tool.protocol.records import ENTRY, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from remote_tool.agent.proc.processes import Process

_LONGEST_COMMAND = 200


def stacks(request: Request) -> None:
    """Answer op ``stacks``: a frame for each Python process of each job, and one at the end."""
    folders = request.folders()
    keep = request.get("keep", is_flag, default=False)
    py_spy = find_py_spy(folders.activation) if request.get("native", is_flag, default=False) else ""
    jobs = job_folder.open_jobs_folder(folders.jobs)
    host = states.scan()
    for job_id in request.get("ids", is_list):
        folder = job_folder.open_job(jobs, job_id)
        if folder is None:
            continue
        try:
            job = states.judge(folder, job_id, host)
            if job.ended is not None:
                request.answer({"job": job_id, "ended": True})
                continue
            tracer = Tracer(py_spy, folder, job.supervisor) if py_spy else None
            shown = _show(request, job_id, _of_the_user(job), tracer)
            if not shown and job_folder.exists(folder, ENTRY) and not _sees_inside(job, host):
                request.answer({"job": job_id, "why": _unseen(folder, job_id)})
            if keep and shown:
                store(folder, shown)
        except (RecordError, OSError) as error:
            request.answer({"job": job_id, "why": str(error)})
        finally:
            os.close(folder)
    request.answer({"done": True})


def _show(request: Request, job_id: str, processes: List[Process], tracer: Optional[Tracer]) -> List[Stack]:
    shown = []
    for taken in take(processes):
        stack = taken if tracer is None else tracer.add_native_calls(taken)
        # Answer at once: tracing all of them may take longer than the client waits for the next answer.
        request.answer({"job": job_id, **_describe(stack)}, stack.text.encode("utf-8", "replace"))
        shown.append(stack)
    return shown


def _sees_inside(job: states.JobStatus, host: states.HostSnapshot) -> bool:
    """Return whether any process behind the job's launch command can be seen; it alone is not one of them."""
    return any(host.snapshot.is_marked(process, job.spec["id"]) for process in job.members)


def _unseen(folder: int, job_id: str) -> str:
    record = job_folder.read_record(folder, ENTRY, job_id)
    word = os.path.basename(record["ask"][0]) if record else "a launch command"
    return f"its processes run behind {word}, where they cannot be seen from this server"


def _of_the_user(job: states.JobStatus) -> List[Process]:
    """Return the job's processes, except for our own session leader of a terminal."""
    leader = (job.started or {}).get("pid") if job.spec["terminal"] else None
    return [process for process in job.members if process.pid != leader]


def _describe(stack: Stack) -> Dict[str, Any]:
    process = stack.process
    known = {"pid": process.pid, "parent": process.parent, "why": stack.why, "command": _command(process.pid)}
    return {**known, **rank_of(process.pid)}


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as stream:
        return stream.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()[:_LONGEST_COMMAND]
    return ""
