"""The synchronous Python API: a thin face over the workflows, which run on one background event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from remote_tool import workflows
from remote_tool.config.loading import load
from remote_tool.jobs.job import DEFAULT_GRACE
from remote_tool.jobs.listed_hosts import recall_hosts, remember_hosts
from remote_tool.jobs.registry import Registry
from remote_tool.paths import current_folder, find_root
from remote_tool.transport.left_threads import Loop
from remote_tool.transport.pool import HostPool, Results
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import Notice, Report, ignore
from remote_tool.workflows.selection import JobsAnswer, JobSelection, choose_jobs, choose_servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.hosts import ListedHost
    from remote_tool.config.model import Config
    from remote_tool.errors import RemoteToolError
    from remote_tool.jobs.job import Job, JobState
    from remote_tool.launchers.fan_out import FanOutPlan, FanOutRequest
    from remote_tool.launchers.torch import LaunchPlan, LaunchRequest
    from remote_tool.supervisor.artifact_patterns import ArtifactPattern
    from remote_tool.transport.rsync import PushResult
    from remote_tool.workflows.artifacts import PullAnswer
    from remote_tool.workflows.audience import Audience
    from remote_tool.workflows.bandwidth import BandwidthAnswer
    from remote_tool.workflows.check import CheckAnswer
    from remote_tool.workflows.fan_out import FanOutAnswer
    from remote_tool.workflows.follow_jobs import Chunk, FollowAnswer, FollowOptions, OnChunk
    from remote_tool.workflows.install_keys import KeyOnServer, KeysRequest
    from remote_tool.workflows.prepare import PreparedServer
    from remote_tool.workflows.run import OnOutput
    from remote_tool.workflows.start_jobs import StartRequest
    from remote_tool.workflows.strays import StraysAnswer

T = TypeVar("T")
ServerWorkflow = Callable[..., Coroutine[Any, Any, Results[T]]]
LONGEST_GOODBYE = 2.0


@dataclass(frozen=True)
class Hooks:
    """What a user interface gives to a workspace.

    Attributes:
        report: Hears what the workflows do.
        trace: Hears of each remote command: server, what it was, seconds.
        ask_password: Asks the user; returns None when there is nobody to ask.
    """

    report: Report = ignore
    trace: Callable[[str, str, float], None] | None = None
    ask_password: Callable[[str], str | None] | None = None


class Workspace:
    """A project with its servers and jobs.

    Every method that acts on servers does so on all of them at once, and without names on all that are configured.
    """

    def __init__(self, config: Config, hooks: Hooks | None = None) -> None:
        self.config = config
        self._hooks = hooks or Hooks()
        self._registry = Registry(config.local.jobs)

    @classmethod
    def find(cls, start: Path | None = None, hooks: Hooks | None = None) -> Workspace:
        """Find the workspace here or in a folder above, as git does.

        Raises:
            UsageError: There is none.
            ConfigError: Its configuration is wrong.
        """
        config = load(find_root(start or current_folder()))
        report = (hooks or Hooks()).report
        return cls(recall_hosts(config, Registry(config.local.jobs), lambda text: report(Notice("", text))), hooks)

    def with_hosts(self, hosts: str | Sequence[ListedHost]) -> Workspace:
        """Return this workspace with the hosts of a list, such as ``10.0.0.1:2,10.0.0.2:2``, instead of its servers.

        Raises:
            UsageError: It is no such list, or a host cannot be told from a configured server.
        """
        from remote_tool.config.hosts import parse_hosts  # noqa: PLC0415 - seldom needed

        listed = parse_hosts(hosts) if isinstance(hosts, str) else hosts
        return Workspace(remember_hosts(self.config, self._registry, listed), self._hooks)

    def with_hostfile(self, file: Path | str) -> Workspace:
        """Return this workspace with the hosts of a hostfile of MPI, DeepSpeed or Horovod instead of its servers.

        Raises:
            ConfigError: The file cannot be read, or is none; every problem is named.
            UsageError: A host cannot be told from a configured server.
        """
        from pathlib import Path  # noqa: PLC0415 - only annotations need it otherwise

        from remote_tool.config.hosts import load_hostfile  # noqa: PLC0415 - seldom needed

        return self.with_hosts(load_hostfile(Path(file)))

    @property
    def root(self) -> Path:
        """The project folder."""
        return self.config.local.root

    def install_keys(self, request: KeysRequest | None = None, *, check: bool = True) -> Results[KeyOnServer]:
        """Have a key log in to every server; make one where there is none."""
        wished = request or workflows.install_keys.KeysRequest()
        return _checked(self._work(lambda context: workflows.install_keys.install_keys(context, wished)), check=check)

    def measure_bandwidth(self, servers: Sequence[str] = (), *, seconds: float = 2.0) -> BandwidthAnswer:
        """Measure what goes between every two servers, so many seconds for each direction."""
        return self._work(lambda context: workflows.bandwidth.measure_bandwidth(context, servers, seconds))

    def prepare(
        self, servers: Sequence[str] = (), *, force: bool = False, relay: bool = False, check: bool = True
    ) -> Results[PreparedServer]:
        """Install the environment, send the project and install its packages; do only what is missing."""
        options = workflows.prepare.PrepareOptions(force=force, relay=relay)
        return self._on_servers(workflows.prepare.prepare, servers, options, check=check)

    def setup(self, servers: Sequence[str] = (), *, force: bool = False, check: bool = True) -> Results[PreparedServer]:
        """Install the environment."""
        return self._prepared(workflows.prepare.setup, servers, force=force, check=check)

    def update_packages(
        self, servers: Sequence[str] = (), *, force: bool = False, check: bool = True
    ) -> Results[PreparedServer]:
        """Install the packages that the project names."""
        return self._prepared(workflows.prepare.update_packages, servers, force=force, check=check)

    def rsync(
        self,
        servers: Sequence[str] = (),
        *,
        dry_run: bool = False,
        checksum: bool = False,
        relay: bool = False,
        check: bool = True,
    ) -> Results[PushResult]:
        """Send what changed in the project; with relay to one server, and from there to the others."""
        options = workflows.sync.SyncOptions(dry_run=dry_run, checksum=checksum, relay=relay)
        return self._on_servers(workflows.sync.sync, servers, options, check=check)

    def check(self, servers: Sequence[str] = ()) -> CheckAnswer:
        """Look whether servers are fit for training together; change nothing, and raise for no server."""
        return self._work(lambda context: workflows.check.check(context.pool, context.config, servers))

    def run(
        self,
        command: str,
        servers: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        devices: Sequence[str | int] = (),
        on_output: OnOutput | None = None,
        check: bool = True,
    ) -> Results[int]:
        """Run a command in the environment; return the exit status of each server."""
        request = workflows.run.RunRequest(command, tuple(servers), dict(env or {}), tuple(devices))

        async def work(context: Context) -> Results[int]:
            return await workflows.run.run_command(context, request, on_output or _drop)

        return _checked(self._work(work), check=check)

    def start(  # noqa: PLR0913 - one parameter per wish
        self,
        server: str,
        command: str,
        env: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
        *,
        sync: bool = True,
        artifacts: Sequence[str | ArtifactPattern] = (),
        devices: Sequence[str | int] = (),
    ) -> RunningJob:
        """Send what changed and start a job on one server; without sync, as its project folder is.

        Args:
            server: Its name.
            command: For the shell.
            env: Variables of the job; written nowhere.
            tags: Free words.
            sync: Whether changed files are sent first.
            artifacts: Globs of files that it writes and that come home, besides those of the configuration.
            devices: The GPUs that it sees, by number or UUID; none: as configured.

        Raises:
            SyncError: The project could not be sent; nothing was started.
            JobError: It could not be started.
            ConnectError: The server cannot be reached.
        """
        request = workflows.start_jobs.StartRequest(
            command,
            (server,),
            dict(env or {}),
            tuple(tags),
            sync=sync,
            artifacts=tuple(artifacts),
            devices=tuple(devices),
        )
        return RunningJob(self, self.start_jobs(request).jobs[0])

    def launch_torch(  # noqa: PLR0913 - one parameter per wish
        self,
        command: str,
        nproc_per_node: int | Literal["auto"] | None = None,
        *,
        servers: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
        max_restarts: int = 0,
        devices: Sequence[str | int] = (),
    ) -> list[RunningJob]:
        """Send what changed and start one torchrun per server; return the jobs by node rank."""
        from remote_tool.launchers.torch import LaunchRequest  # noqa: PLC0415 - only a launch needs it

        request = LaunchRequest(
            command=command,
            servers=tuple(servers),
            processes=nproc_per_node,
            environment=dict(env or {}),
            tags=tuple(tags),
            max_restarts=max_restarts,
            devices=tuple(devices),
        )
        return [RunningJob(self, job) for job in self.launch(request).jobs]

    def start_jobs(self, *requests: StartRequest, check: bool = True) -> JobsAnswer:
        """Start each command as one job on each of its servers; the jobs come in the order of the requests.

        Each server is sent the project once and asked once, however many jobs it gets.
        """
        return _checked(self._work(lambda context: workflows.start_jobs.start_jobs(context, requests)), check=check)

    def plan_torch(self, request: LaunchRequest) -> LaunchPlan:
        """Say what a launch would start; start nothing."""
        launch = workflows.launch
        return self._work(lambda context: launch.plan_only(context, request, launch.TORCH))

    def launch(self, request: LaunchRequest, *, check: bool = True) -> JobsAnswer:
        """Start one torchrun per server."""
        return _checked(self._work(lambda context: workflows.launch.launch_torch(context, request)), check=check)

    def plan_mpi(self, request: LaunchRequest) -> LaunchPlan:
        """Say what a launch of mpiexec would start; start nothing."""
        launcher = workflows.launch_mpi.MPI
        return self._work(lambda context: workflows.launch.plan_only(context, request, launcher))

    def launch_mpi(self, request: LaunchRequest, *, check: bool = True) -> JobsAnswer:
        """Start mpiexec on the first server, and its ranks on all."""
        return _checked(self._work(lambda context: workflows.launch_mpi.launch_mpi(context, request)), check=check)

    def follow_launch(self, request: LaunchRequest, jobs: Sequence[Job], on_chunk: OnChunk) -> FollowAnswer:
        """Hand on what a launch writes until it ends; with ``max_restarts``, start it again when it lost a node."""
        return self._work(lambda context: workflows.relaunch.follow_launch(context, request, jobs, on_chunk))

    def plan_fan_out(self, request: FanOutRequest) -> FanOutPlan:
        """Say what a fan-out would start; start nothing."""
        return self._work(lambda context: workflows.fan_out.plan(context, request))

    def fan_out(
        self, request: FanOutRequest, *, follow: bool = True, audience: Audience | None = None, check: bool = True
    ) -> FanOutAnswer:
        """Split work over every slot of every server; return when all is done, without follow when all has begun.

        Raises:
            UsageError: Items can only be handed out by somebody who stays.
            JobError: A shard failed more often than it may.
            SomeServersFailedError: Servers failed; what they had is done by the others.
        """
        run = workflows.fan_out.follow if follow else workflows.fan_out.start
        return _checked(self._work(lambda context: run(context, request, audience)), check=check)

    def resume_fan_out(
        self,
        name: str,
        env: Mapping[str, str] | None = None,
        *,
        sync: bool = True,
        audience: Audience | None = None,
        check: bool = True,
    ) -> FanOutAnswer:
        """Go on with a fan-out: follow what runs, start what failed or never began; the name is the end of its id."""
        resume, variables = workflows.fan_out.resume, dict(env or {})
        return _checked(self._work(lambda context: resume(context, name, variables, audience, sync=sync)), check=check)

    def list_jobs(self, selection: JobSelection | None = None, *, logs: bool = False) -> JobsAnswer:
        """Return jobs as their servers see them; with logs, bring home what they wrote."""
        chosen = selection or JobSelection()
        return self._work(lambda context: workflows.list_jobs.list_jobs(context, chosen, logs=logs))

    def follow_jobs(
        self, selection: JobSelection, on_chunk: OnChunk, options: FollowOptions | None = None
    ) -> FollowAnswer:
        """Hand on what jobs write until they end; the callback is called on another thread."""
        chosen = options or workflows.follow_jobs.FollowOptions()
        return self._work(lambda context: workflows.follow_jobs.follow_selected(context, selection, on_chunk, chosen))

    def stop_jobs(self, selection: JobSelection, *, signal: str = "SIGTERM", grace: float | None = None) -> JobsAnswer:
        """Stop jobs, every process of them."""
        return self._work(lambda context: workflows.stop_jobs.stop_jobs(context, selection, signal=signal, grace=grace))

    def find_strays(self, servers: Sequence[str] = ()) -> StraysAnswer:
        """Return the processes of this project on its servers that nothing looks after any more."""
        return self._work(lambda context: workflows.strays.find_strays(context, servers))

    def end_strays(
        self, found: StraysAnswer, *, signal: str = "SIGTERM", grace: float = DEFAULT_GRACE
    ) -> Mapping[str, RemoteToolError]:
        """End strays that were found, with all that belongs to them; return the error of each server that has one."""
        return self._work(lambda context: workflows.strays.end_strays(context, found, signal=signal, grace=grace))

    def wait_jobs(self, selection: JobSelection, *, timeout: float | None = None) -> JobsAnswer:
        """Wait until jobs have ended; timeout in seconds."""
        return self._work(lambda context: workflows.follow_jobs.wait_for_jobs(context, selection, timeout=timeout))

    def pull_logs(self, selection: JobSelection | None = None) -> JobsAnswer:
        """Bring home what jobs wrote."""
        chosen = selection or JobSelection()
        return self._work(lambda context: workflows.list_jobs.pull_logs(context, chosen))

    def pull_jobs(
        self,
        selection: JobSelection | None = None,
        artifacts: Sequence[str | ArtifactPattern] = (),
        *,
        check: bool = True,
    ) -> PullAnswer:
        """Bring home files that jobs wrote; artifacts are globs, instead of those that the jobs were started with."""
        chosen = selection or JobSelection()
        answer = self._work(lambda context: workflows.pull_jobs.pull_jobs(context, chosen, artifacts))
        return _checked(answer, check=check)

    def pull_artifacts(self, jobs: Sequence[Job]) -> PullAnswer:
        """Bring home the files that these jobs were started with, as far as there are some that are not here."""
        wanted = [job for job in jobs if job.artifacts and not job.artifacts_complete]
        if not wanted:
            return workflows.artifacts.PullAnswer(())
        return self._work(lambda context: workflows.artifacts.pull_artifacts(context, wanted))

    def select_local(self, selection: JobSelection) -> list[Job]:
        """Return jobs from the records here, without asking a server."""
        registry = self._registry
        jobs, _ = registry.load() if selection.may_have_ended else registry.load_unfinished()
        return choose_jobs(jobs, selection)

    def _prepared(
        self,
        workflow: Callable[..., Coroutine[Any, Any, Results[PreparedServer]]],
        servers: Sequence[str],
        *,
        force: bool,
        check: bool,
    ) -> Results[PreparedServer]:
        return self._on_servers(workflow, servers, workflows.prepare.PrepareOptions(force=force), check=check)

    def _on_servers(
        self,
        workflow: Callable[..., Coroutine[Any, Any, Results[T]]],
        names: Sequence[str],
        options: object,
        *,
        check: bool,
    ) -> Results[T]:
        servers = choose_servers(self.config, names)

        async def work(context: Context) -> Results[T]:
            return await workflow(context.pool, context.config, servers, options, context.report)

        return _checked(self._work(work), check=check)

    def _work(self, work: Callable[[Context], Coroutine[Any, Any, T]]) -> T:
        async def connected() -> T:
            async with self._pool() as pool:
                return await work(Context(self.config, pool, self._registry, self._hooks.report))

        return _in_background(connected())

    def _pool(self) -> HostPool:
        def notice(server: str, text: str) -> None:
            self._hooks.report(Notice(server, text))

        return HostPool(self.config, report=notice, trace=self._hooks.trace, ask_password=self._hooks.ask_password)


class RunningJob:
    """A job that was started."""

    def __init__(self, workspace: Workspace, job: Job) -> None:
        self._workspace = workspace
        self.job = job

    def __repr__(self) -> str:
        return f"<RunningJob {self.job.key} on {self.job.server}: {self.job.state}>"

    @property
    def id(self) -> str:
        """The same on every laptop."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """As the server says now."""
        return self._take(self._workspace.list_jobs(self._selection))

    @property
    def exit_code(self) -> int | None:
        """0 to 255 once it has ended by itself."""
        return self.job.exit_code

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait for the end; timeout in seconds.

        Raises:
            JobError: It has not ended by then.
        """
        return self._take(self._workspace.wait_jobs(self._selection, timeout=timeout).raise_if_any_failed())

    def kill(self, signal: str = "SIGTERM", grace: float | None = None) -> JobState:
        """Stop every process of it; an ended job stays as it is."""
        if self.job.state.is_finished:
            return self.job.state
        return self._take(self._workspace.stop_jobs(self._selection, signal=signal, grace=grace).raise_if_any_failed())

    def pull(self, *artifacts: str | ArtifactPattern) -> list[Path]:
        """Bring home files that it wrote, and return where they are, also of those that were here.

        Args:
            artifacts: Globs, instead of those that it was started with.

        Raises:
            UsageError: It was started with none, and none are given.
            JobError: There is no room here, or the server does not tell.
        """
        answer = self._workspace.pull_jobs(self._selection, artifacts)
        return [file.path for pulled in answer.jobs for file in pulled.files]

    def tail(self) -> Iterator[str]:
        """Yield its lines as they are written, without line breaks, until it has ended.

        Raises:
            RemoteToolError: Its server cannot be followed.
        """
        chunks: SimpleQueue[Chunk | BaseException | None] = SimpleQueue()

        def follow() -> None:
            try:
                answer = self._workspace.follow_jobs(self._selection, chunks.put)
                for job in answer.jobs:
                    self.job = job
                chunks.put(next(iter(answer.errors.values()), None))
            except BaseException as error:  # noqa: BLE001 - raised to whoever reads the lines
                chunks.put(error)

        threading.Thread(target=follow, name="remote-tool tail", daemon=True).start()
        yield from _lines(chunks)

    @property
    def _selection(self) -> JobSelection:
        return JobSelection(jobs=(self.job.id,), stopped=True, hidden=True)

    def _take(self, answer: JobsAnswer) -> JobState:
        for job in answer.jobs:
            self.job = job
        return self.job.state


def _lines(chunks: SimpleQueue[Chunk | BaseException | None]) -> Iterator[str]:
    pending: dict[str, bytes] = {}
    while (chunk := chunks.get()) is not None:
        if isinstance(chunk, BaseException):
            raise chunk
        *lines, pending[chunk.stream] = (pending.get(chunk.stream, b"") + chunk.data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    yield from (rest.decode(errors="replace") for rest in pending.values() if rest)


def _drop(_server: str, _stream: object, _data: bytes) -> None:
    """Keep nothing of the output."""


C = TypeVar("C", bound="JobsAnswer | PullAnswer | FanOutAnswer | Results[Any]")


def _checked(answer: C, *, check: bool) -> C:
    if check:
        answer.raise_if_any_failed()
    return answer


_loop_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def _background_loop() -> asyncio.AbstractEventLoop:
    """One loop on a thread of its own: the caller may itself run in an event loop, as in a notebook."""
    with _loop_lock:
        if not _loops:
            loop = Loop()
            threading.Thread(target=loop.run_forever, name="remote-tool", daemon=True).start()
            _loops.append(loop)
        return _loops[0]


def _in_background(work: Coroutine[Any, Any, T]) -> T:
    ended = threading.Event()

    async def guarded() -> T:
        try:
            return await work
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(guarded(), _background_loop())
    try:
        return future.result()
    except BaseException:
        # Ctrl-C comes to this thread: let the work end its connections and programs before we leave.
        if future.cancel():
            ended.wait(LONGEST_GOODBYE)
        raise
