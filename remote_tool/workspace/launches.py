"""The methods that start jobs: on one server, on all, and one launch over several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Unpack

from remote_tool.config.limits import names_of
from remote_tool.workspace.jobs import JobMethods, RunningJob
from remote_tool.workspace.project import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.jobs.job import Job
    from remote_tool.launchers.options import LaunchKeywords, StartKeywords
    from remote_tool.launchers.plan import LaunchPlan
    from remote_tool.launchers.request import LaunchRequest
    from remote_tool.workflows.fan_out.answer import FanOutAnswer
    from remote_tool.workflows.fan_out.observer import Observer
    from remote_tool.workflows.fan_out.plan import FanOutPlan
    from remote_tool.workflows.fan_out.request import FanOutRequest
    from remote_tool.workflows.jobs.follow import FollowAnswer, OnChunk
    from remote_tool.workflows.selection import JobsAnswer
    from remote_tool.workflows.start.start import StartRequest
    from remote_tool.workflows.sweep.answer import SweepAnswer
    from remote_tool.workflows.sweep.plan import SweepPlan
    from remote_tool.workflows.sweep.request import SweepRequest
    from remote_tool.workflows.sweep.results import SweepResults
    from remote_tool.workflows.sweep.values import SweepSpec


class LaunchMethods(JobMethods):
    """Methods that start the jobs of a project."""

    def start(
        self,
        server: str,
        command: str,
        env: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
        **options: Unpack[StartKeywords],
    ) -> RunningJob:
        """Send changed files and start a job on one server.

        Args:
            server: Its name.
            command: Text for the shell.
            env: Environment variables of the job; never written to disk.
            tags: Any words.
            options: Of :class:`~remote_tool.StartRequest`, such as ``gpus=1``; its documentation lists them.

        Raises:
            SyncError: The project could not be sent; nothing was started.
            JobError: The job could not be started.
            ConnectError: The server cannot be reached.
        """
        from remote_tool.launchers.options import as_fields
        from remote_tool.workflows.start.start import StartRequest

        request = StartRequest(command, (server,), env=env, tags=tuple(tags), **as_fields(options))
        return RunningJob(self, self.start_jobs(request).jobs[0])

    def start_jobs(
        self, *requests: StartRequest, env: Mapping[str, str] | None = None, check: bool = True
    ) -> JobsAnswer:
        """Start each command as one job on each of its servers; the jobs come in the order of the requests.

        The project is sent to each server once, and a server is asked once per 256 jobs. ``env`` applies to every job.
        """
        from remote_tool.workflows.start.start import start_jobs

        every = [replace(request, env=env) for request in requests]
        return checked(self._work(lambda context: start_jobs(context, every)), check=check)

    def plan_rerun(
        self,
        *jobs: str,
        command: str | None = None,
        env: Mapping[str, str] | None = None,
        servers: Sequence[str] = (),
        current_code: bool = False,
        kept_code: bool = False,
    ) -> list[StartRequest | LaunchRequest]:
        """Return the requests of :meth:`rerun`, each launch once; starts nothing."""
        from remote_tool.workflows.rerun import RerunChanges, requests_again

        changes = RerunChanges(command, names_of(servers), dict(env or {}), current_code, kept_code)
        return self._work(lambda context: requests_again(context, jobs, changes))

    def plan_requeue(self, *jobs: str, env: Mapping[str, str] | None = None) -> list[StartRequest | LaunchRequest]:
        """Return the requests that put jobs back into the queue; starts nothing."""
        from remote_tool.workflows.rerun import RerunChanges, requests_to_requeue

        changes = RerunChanges(environment=dict(env or {}))
        return self._work(lambda context: requests_to_requeue(context, jobs, changes))

    def requeue(self, *jobs: str, env: Mapping[str, str] | None = None, check: bool = True) -> JobsAnswer:
        """Put jobs that left the queue before they began back into it, with the same settings; see :meth:`rerun`.

        Raises:
            UsageError: A job has begun or is still queued, or a variable has no value; nothing was started.
        """
        return self.start_requests(self.plan_requeue(*jobs, env=env), check=check)

    def start_requests(self, requests: Sequence[StartRequest | LaunchRequest], *, check: bool = True) -> JobsAnswer:
        """Start jobs and launches, such as the requests of :meth:`plan_rerun`."""
        from remote_tool.workflows.rerun import start_requests

        return checked(self._work(lambda context: start_requests(context, requests)), check=check)

    def rerun(
        self,
        *jobs: str,
        command: str | None = None,
        env: Mapping[str, str] | None = None,
        servers: Sequence[str] = (),
        current_code: bool = False,
        check: bool = True,
    ) -> JobsAnswer:
        """Start jobs, or the launches that they belong to, again as recorded.

        They run in the copies of the code that they ran in, as long as their servers keep these, else from the current
        code.

        Args:
            jobs: Keys or ids.
            command: Instead of the recorded one; None: as recorded.
            env: Values of variables; the others come from the environment of this program or from the configuration.
            servers: Instead of the recorded ones; empty: as recorded.
            current_code: Whether to run the current code in any case.
            check: Raise if a server failed; otherwise the result holds its error.

        Raises:
            UsageError: There is no such job, it cannot be repeated, or a variable has no value; nothing was started.
        """
        requests = self.plan_rerun(*jobs, command=command, env=env, servers=servers, current_code=current_code)
        return self.start_requests(requests, check=check)

    def launch_torch(
        self,
        command: str,
        nproc_per_node: int | Literal["auto", "cpu", "gpu"] | None = None,
        *,
        servers: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
        **options: Unpack[LaunchKeywords],
    ) -> list[RunningJob]:
        """Send changed files and start one torchrun per server; return the jobs by node rank.

        Args:
            command: Script and arguments, as after ``torchrun``.
            nproc_per_node: Processes per server; gpu or cpu: one per device; auto: one per GPU, or 1 without GPUs.
            servers: In the order of their node ranks; empty: all.
            env: Environment variables of every rank; never written to disk.
            tags: Tags of every job of the launch.
            options: Of :class:`~remote_tool.LaunchRequest`, such as ``max_restarts=1``; its documentation lists them.
        """
        from remote_tool.launchers.options import as_fields
        from remote_tool.launchers.request import LaunchRequest

        request = LaunchRequest(
            command=command,
            servers=names_of(servers),
            nproc_per_node=nproc_per_node,
            env=env,
            tags=tuple(tags),
            **as_fields(options),
        )
        return [RunningJob(self, job) for job in self.launch(request).jobs]

    def plan_launch(self, request: LaunchRequest) -> LaunchPlan:
        """Return what a launch would start; starts nothing."""
        from remote_tool.workflows.launch.launch import plan_only

        return self._work(lambda context: plan_only(context, request))

    def plan_torch(self, request: LaunchRequest) -> LaunchPlan:
        """Plan a launch: the older name of :meth:`plan_launch`."""
        return self.plan_launch(request)

    def launch(self, request: LaunchRequest, *, env: Mapping[str, str] | None = None, check: bool = True) -> JobsAnswer:
        """Start a launch with the launcher of the request: torchrun, the command itself, or mpiexec."""
        from remote_tool.workflows.launch.launch import launch

        request = replace(request, env=env)
        return checked(self._work(lambda context: launch(context, request)), check=check)

    def plan_mpi(self, request: LaunchRequest) -> LaunchPlan:
        """Return what a launch of mpiexec would start; starts nothing."""
        return self.plan_launch(replace(request, launcher="mpi"))

    def launch_mpi(
        self, request: LaunchRequest, *, env: Mapping[str, str] | None = None, check: bool = True
    ) -> JobsAnswer:
        """Start mpiexec on the first server, and its ranks on all servers."""
        return self.launch(replace(request, launcher="mpi"), env=env, check=check)

    def follow_launch(self, request: LaunchRequest, jobs: Sequence[Job], on_chunk: OnChunk) -> FollowAnswer:
        """Pass on the output of a launch until it ends; with ``max_restarts``, restart it when it loses a node."""
        from remote_tool.workflows.launch.restart import follow_launch

        return self._work(lambda context: follow_launch(context, request, jobs, on_chunk))

    def plan_fan_out(self, request: FanOutRequest) -> FanOutPlan:
        """Return what a fan-out would start; starts nothing."""
        from remote_tool.workflows.fan_out.fan_out import plan

        return self._work(lambda context: plan(context, request))

    def fan_out(
        self,
        request: FanOutRequest,
        *,
        env: Mapping[str, str] | None = None,
        follow: bool = True,
        observer: Observer | None = None,
        check: bool = True,
    ) -> FanOutAnswer:
        """Split work over all slots of all servers; return when everything is done or, without ``follow``, started.

        Raises:
            UsageError: Items need ``follow``, because each free slot is given the next one.
            JobError: A shard failed more often than ``retries`` allows.
            SomeServersFailedError: Servers failed; the others did their work.
        """
        from remote_tool.workflows.fan_out.fan_out import follow as follow_all
        from remote_tool.workflows.fan_out.fan_out import start

        request = replace(request, env=env)
        run = follow_all if follow else start
        return checked(self._work(lambda context: run(context, request, observer)), check=check)

    def resume_fan_out(
        self,
        name: str,
        env: Mapping[str, str] | None = None,
        *,
        sync: bool = True,
        overwrite: bool = False,
        observer: Observer | None = None,
        check: bool = True,
    ) -> FanOutAnswer:
        """Resume a fan-out by name: follow running shards, start those that failed or never started."""
        from remote_tool.workflows.fan_out.fan_out import resume

        variables = dict(env or {})
        return checked(
            self._work(lambda context: resume(context, name, variables, observer, sync=sync, overwrite=overwrite)),
            check=check,
        )

    def plan_sweep(self, request: SweepRequest) -> SweepPlan:
        """Return what a sweep would start; starts nothing."""
        from remote_tool.workflows.sweep.sweep import plan

        return self._work(lambda context: plan(context, request))

    def sweep(self, request: SweepRequest, *, env: Mapping[str, str] | None = None, check: bool = True) -> SweepAnswer:
        """Queue a job for each combination of parameters, placed over all servers; return once they are queued.

        Raises:
            SomeServersFailedError: Servers failed; the others have their jobs.
        """
        from remote_tool.workflows.sweep.sweep import start

        request = replace(request, env=env)
        return checked(self._work(lambda context: start(context, request)), check=check)

    def resume_sweep(
        self,
        name: str,
        more: SweepSpec | None = None,
        *,
        env: Mapping[str, str] | None = None,
        sync: bool = True,
        overwrite: bool = False,
        check: bool = True,
    ) -> SweepAnswer:
        """Start the combinations of a sweep that failed or were lost, and the combinations of ``more`` that are new.

        Raises:
            UsageError: There is no such sweep, or it has another command or other parameters.
        """
        from remote_tool.workflows.sweep.sweep import resume

        variables = dict(env or {})
        return checked(
            self._work(lambda context: resume(context, name, variables, more, sync=sync, overwrite=overwrite)),
            check=check,
        )

    def sweep_results(
        self, name: str = "", *, metric: str = "", mode: str = "min", sort: str = "", logs: bool = False
    ) -> SweepResults:
        """Return the combinations of a sweep, by default of the newest one, with what their jobs have reached.

        Args:
            name: Its name, the end of its id.
            metric: A value in the output, such as ``loss``; each row has its best one, as far as the output is here.
            mode: ``min`` or ``max``: which value is the best.
            sort: A column, with ``-`` before it for the reverse order.
            logs: Fetch the output first.
        """
        from remote_tool.workflows.sweep.results import results

        return self._work(lambda context: results(context, name, metric=metric, mode=mode, sort=sort, logs=logs))
