"""Send the output of jobs as it appears, until all have ended or the client has gone."""

from __future__ import annotations

from typing import List, Optional

from remote_tool.agent.logs.followed_job import FollowedJob
from remote_tool.agent.logs.poller import Poller
from remote_tool.agent.requests import Request, is_flag, is_list
from remote_tool.agent.states import CachedScan
from remote_tool.protocol import job_folder


def follow(request: Request) -> None:
    """Answer op ``follow`` until every job has ended and been sent, or the client has gone."""
    folders = request.folders()
    asked = request.get("jobs", is_list)
    wait = request.get("wait", is_flag, default=True)
    output = request.get("streams", is_flag, default=True)
    jobs = job_folder.open_jobs_folder(folders.jobs)
    job_folder.allow_open_files(len(asked))
    scans = CachedScan()
    followed = [FollowedJob(jobs, job, scans, wait=wait, output=output) for job in asked]
    due: Optional[List[FollowedJob]] = followed
    poller = Poller()
    while due is not None:
        scans.forget()
        sent = [job for job in due if _send(request, job)]
        followed = [job for job in followed if not job.is_done]
        if not followed:
            request.answer({"done": True})
            return
        due = poller.wait(followed, sent)


def _send(request: Request, job: FollowedJob) -> bool:
    """Send a job's new output; return whether there was any."""
    sent = False
    for message in job.advance():
        request.answer({"job": job.job_id, **message.header}, message.body)
        sent = True
    return sent
