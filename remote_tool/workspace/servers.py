"""The methods that prepare servers, send files to them, run commands on them and clean them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from remote_tool.config.limits import names_of
from remote_tool.config.loading import remark_on_terminals
from remote_tool.protocol.limits import DEFAULT_INTERVAL, EXERCISE_SECONDS
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import choose_servers
from remote_tool.workspace.project import Project, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from remote_tool.transport.pool import Results
    from remote_tool.transport.sync.push import PushResult
    from remote_tool.workflows.clean.request import CleanAnswer, CleanRequest
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.forward.forward import ForwardRequest, Listener
    from remote_tool.workflows.forward.jupyter import JupyterRequest, Notebook
    from remote_tool.workflows.jobs.run import OnOutput, RunResult
    from remote_tool.workflows.prepare.prepare import PreparedServer
    from remote_tool.workflows.servers.bandwidth import BandwidthAnswer
    from remote_tool.workflows.servers.check import CheckAnswer
    from remote_tool.workflows.servers.gpus import GpusAnswer
    from remote_tool.workflows.servers.install_keys import KeyOnServer, KeysRequest
    from remote_tool.workflows.servers.kept_logins import KeptLogin
    from remote_tool.workflows.servers.top import OnTopEvent, TopAnswer
    from remote_tool.workflows.sync.left_out import LeftOut
    from remote_tool.workflows.sync.options import OnLowDisk
    from remote_tool.workflows.terminal.session import Screen
    from remote_tool.workflows.terminal.shell import ShellEnd, ShellRequest
    from remote_tool.workspace.background import BackgroundWork

T = TypeVar("T")


class ServerMethods(Project):
    """Methods for the servers of a project."""

    def install_keys(self, request: KeysRequest | None = None, *, check: bool = True) -> Results[KeyOnServer]:
        """Set up key-based login on servers; create a key if there is none."""
        from remote_tool.workflows.servers.install_keys import KeysRequest, install_keys

        request = request or KeysRequest()
        work = self._work(lambda context: install_keys(context, request))
        return checked(work, check=check)

    def check(
        self, servers: Sequence[str] = (), *, exercise: bool = False, seconds: float = EXERCISE_SECONDS
    ) -> CheckAnswer:
        """Check that servers are ready for training together; change nothing, and raise no error of a server.

        Args:
            servers: Names; empty: all.
            exercise: Also run jobs that exercise the GPUs, or the CPU where there is none, and the network.
            seconds: The most that the exercise takes, from 20 to 3600, after waiting at most as long for free GPUs.

        Raises:
            UsageError: The time is out of range.
        """
        from remote_tool.workflows.exercise.exercise import END_SECONDS
        from remote_tool.workflows.servers.check import check, check_and_exercise

        self._warn_of_terminals(servers)
        if exercise:
            return self._work(lambda context: check_and_exercise(context, servers, seconds), END_SECONDS)
        return self._work(lambda context: check(context.pool, context.config, servers))

    def _warn_of_terminals(self, servers: Sequence[str]) -> None:
        """Report launch commands that request a terminal; only few commands do, as such launch commands work."""
        if text := remark_on_terminals(self.config, choose_servers(self.config, servers)):
            self.hooks.report(Notice("", text))

    def measure_bandwidth(self, servers: Sequence[str] = (), *, seconds: float = 2.0) -> BandwidthAnswer:
        """Measure network bandwidth between each pair of servers, for this many seconds in each direction."""
        from remote_tool.workflows.servers.bandwidth import measure_bandwidth

        return self._work(lambda context: measure_bandwidth(context, servers, seconds))

    def list_gpus(self, servers: Sequence[str] = ()) -> GpusAnswer:
        """Return the holder of each GPU of servers, and the number of waiting jobs; raise no error of a server."""
        from remote_tool.workflows.servers.gpus import list_gpus

        return self._work(lambda context: list_gpus(context, servers))

    def wait_for_gpus(self, count: int, servers: Sequence[str] = ()) -> GpusAnswer:
        """Wait until one of the servers has this many free GPUs; ``with_free(count)`` of the answer names it.

        They are not reserved: a job that waits for GPUs is started with ``gpus`` of its request.
        """
        from remote_tool.workflows.servers.gpus import wait_for_gpus

        return self._work(lambda context: wait_for_gpus(context, servers, count))

    def take_samples(self, servers: Sequence[str] = ()) -> TopAnswer:
        """Return the use of GPUs, processors, memory and disks of servers now, and their running jobs."""
        from remote_tool.workflows.servers.top import take_samples

        return self._work(lambda context: take_samples(context, servers))

    def watch(
        self, on_event: OnTopEvent, servers: Sequence[str] = (), *, interval: float = DEFAULT_INTERVAL
    ) -> BackgroundWork[None]:
        """Report samples of servers and changes of their jobs until ``stop()`` of the returned object is called.

        The callback runs on the thread that does the work: it must return soon, and cannot call this API.
        """
        from remote_tool.workflows.servers.top import watch

        return self._begin(lambda context: watch(context, servers, on_event, interval=interval))

    def list_connections(self, servers: Sequence[str] = ()) -> list[KeptLogin]:
        """Return the logins that are kept open for later commands, without asking a server."""
        from remote_tool.workflows.servers.kept_logins import list_connections

        return self._work(lambda context: list_connections(context, servers))

    def disconnect(self, servers: Sequence[str] = ()) -> list[KeptLogin]:
        """Close the logins that are kept open, also those in use; return the closed ones."""
        from remote_tool.workflows.servers.kept_logins import end_connections

        return self._work(lambda context: end_connections(context, servers))

    def ssh_config(self, servers: Sequence[str] = (), *, check: bool = True) -> Results[str]:
        """Return ``Host`` blocks for ``~/.ssh/config`` with which ssh logs in to servers by their names, as we do."""
        from remote_tool.workflows.servers.ssh_config import host_blocks

        return checked(self._work(lambda context: host_blocks(context, servers)), check=check)

    def install_ssh_config(self, servers: Sequence[str] = (), *, check: bool = True) -> Results[str]:
        """Write these blocks into a file that ``~/.ssh/config`` includes; does nothing if no block can be made.

        Raises:
            UsageError: A file cannot be written, or belongs to another project.
        """
        from remote_tool.workflows.servers.ssh_config import install

        blocks = self.ssh_config(servers, check=check)
        if blocks.values:
            install(self.config, list(blocks.values.values()))
        return blocks

    def remove_ssh_config(self) -> bool:
        """Undo :meth:`install_ssh_config`; return whether there was something to undo.

        Raises:
            UsageError: A file cannot be written, or belongs to another project.
        """
        from remote_tool.workflows.servers.ssh_config import remove

        return remove(self.config)

    def prepare(
        self,
        servers: Sequence[str] = (),
        *,
        force: bool = False,
        relay: bool = False,
        overwrite: bool = False,
        check: bool = True,
    ) -> Results[PreparedServer]:
        """Install the environment, send the project and install its packages; skip every step that is up to date."""
        from remote_tool.workflows.prepare.prepare import PrepareOptions, prepare

        self._warn_of_terminals(servers)
        options = PrepareOptions(force=force, relay=relay, overwrite=overwrite)

        async def send(context: Context, on_low_disk: OnLowDisk) -> Results[PreparedServer]:
            with_warnings = replace(options, on_low_disk=on_low_disk)
            return await prepare(context.pool, context.config, servers, with_warnings, context.report)

        return checked(self._send(send), check=check)

    def setup(self, servers: Sequence[str] = (), *, force: bool = False, check: bool = True) -> Results[PreparedServer]:
        """Install the environment."""
        from remote_tool.workflows.prepare.prepare import PrepareOptions, setup

        options = PrepareOptions(force=force)
        return self._work_on_servers(setup, servers, options, check=check)

    def update_packages(
        self, servers: Sequence[str] = (), *, force: bool = False, check: bool = True
    ) -> Results[PreparedServer]:
        """Install the packages that the project lists."""
        from remote_tool.workflows.prepare.prepare import PrepareOptions, update_packages

        options = PrepareOptions(force=force)
        return self._work_on_servers(update_packages, servers, options, check=check)

    def rsync(  # noqa: PLR0913 - one parameter per option
        self,
        servers: Sequence[str] = (),
        *,
        dry_run: bool = False,
        checksum: bool = False,
        relay: bool = False,
        overwrite: bool = False,
        adopt: bool = False,
        check: bool = True,
    ) -> Results[PushResult]:
        """Send changed project files.

        Args:
            servers: Names; empty: all.
            dry_run: List what would be sent and removed, and change nothing.
            checksum: Compare contents, not sizes and times.
            relay: Send to one server, which forwards to the others.
            overwrite: Also replace files that were changed on the server or never sent; by default these are kept.
            adopt: Share a folder that only another workspace has sent; its files that are not here stay.
            check: Raise if a server failed; otherwise the result holds its error.

        Raises:
            SyncError: Not everything could be sent, for example because a file changed both here and on the server.
        """
        from remote_tool.workflows.sync.options import SyncOptions
        from remote_tool.workflows.sync.sync import sync

        options = SyncOptions(dry_run=dry_run, checksum=checksum, relay=relay, overwrite=overwrite, adopt=adopt)

        async def send(context: Context, on_low_disk: OnLowDisk) -> Results[PushResult]:
            with_warnings = replace(options, on_low_disk=on_low_disk)
            return await sync(context.pool, context.config, servers, with_warnings, context.report)

        return checked(self._send(send), check=check)

    def left_out(self) -> list[LeftOut]:
        """Return the files and folders of the project that a rule leaves out of syncs, with the rule.

        What is in such a folder is not listed, and neither are files that are held back for what they contain.

        Raises:
            SyncError: The rsync here does not say this, or the project cannot be listed.
        """
        from remote_tool.workflows.sync.left_out import find_left_out

        return self._work(lambda context: find_left_out(context.config))

    def data_sync(  # noqa: PLR0913 - one parameter per option
        self,
        names: Sequence[str] = (),
        servers: Sequence[str] = (),
        *,
        dry_run: bool = False,
        checksum: bool = False,
        relay: bool = False,
        overwrite: bool = False,
        check: bool = True,
    ) -> dict[str, Results[PushResult]]:
        """Send configured data sets to their folders on the servers; return the results by data set.

        Args:
            names: Data sets; empty: all.
            servers: Names; empty: all.
            dry_run: List what would be sent, and change nothing.
            checksum: Compare contents, not sizes and times.
            relay: Send to one server, which forwards to the others.
            overwrite: Also replace files that were changed on the server.
            check: Raise if a server failed; otherwise the result holds its error.

        Raises:
            UsageError: A data set is not configured, or does not exist here.
            SyncError: Not everything could be sent; the next call resumes.
        """
        from remote_tool.workflows.sync.data_sets import data_sync
        from remote_tool.workflows.sync.options import SyncOptions

        options = SyncOptions(dry_run=dry_run, checksum=checksum, relay=relay, overwrite=overwrite)

        async def send(context: Context, on_low_disk: OnLowDisk) -> dict[str, Results[PushResult]]:
            return await data_sync(context, names, servers, replace(options, on_low_disk=on_low_disk))

        answer = self._send(send)
        for results in answer.values():
            checked(results, check=check)
        return answer

    def _send(self, send: Callable[[Context, OnLowDisk], Coroutine[Any, Any, T]]) -> T:
        """Send files, then warn of disks that are low."""

        async def work(context: Context) -> T:
            low: dict[str, tuple[int, int]] = {}
            sent = await send(context, low.__setitem__)
            if low:
                from remote_tool.workflows.clean.disk_space import warn_of_low_disks

                await warn_of_low_disks(context, low)
            return sent

        return self._work(work)

    def send_from_job(
        self, job: str, servers: Sequence[str] = (), *, overwrite: bool = False, check: bool = True
    ) -> Results[PushResult]:
        """Send the local files of a job, given by key or id, to the same places in the project on the servers.

        Raises:
            SyncError: A file is newer on a server, or was changed there; ``overwrite`` replaces it.
        """
        from remote_tool.workflows.sync.from_job import send_from_job

        return checked(
            self._work(lambda context: send_from_job(context, job, servers, overwrite=overwrite)), check=check
        )

    def run(  # noqa: PLR0913 - one parameter per option
        self,
        command: str,
        servers: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        devices: Sequence[str | int] = (),
        on_output: OnOutput | None = None,
        workdir: str | None = None,
        internet: bool = False,
        check: bool = True,
    ) -> Results[RunResult]:
        """Run a command in the environment; return each server's exit status, with stdout and stderr.

        Args:
            command: Text for the shell.
            servers: Names; empty: all.
            env: Environment variables of the command.
            devices: GPUs to expose, by number or UUID; empty: as configured.
            on_output: Called with output as it arrives; then none of it is kept for the result.
            workdir: The working folder, relative to the project; None: as configured, else the project folder.
            internet: Let it reach allowed hosts of the internet by https, through this machine.
            check: Raise if a server failed or the command exited with a status other than 0.

        Raises:
            RemoteCommandError: The command exited with a status other than 0.
            SomeServersFailedError: This happened on one of several servers.
        """
        from remote_tool.workflows.jobs.run import RunRequest, run_command, with_statuses_checked

        request = RunRequest(command, names_of(servers), env or {}, tuple(devices), workdir, internet=internet)

        async def work(context: Context) -> Results[RunResult]:
            return await run_command(context, request, on_output)

        results = self._work(work)
        return checked(with_statuses_checked(command, results) if check else results, check=check)

    def shell(self, request: ShellRequest, screen: Screen) -> ShellEnd:
        """Run a program on one server with a screen, until the program ends or the user leaves it.

        Raises:
            UsageError: No server or more than one is selected, or the program needs a terminal and the screen is none.
            JobError: The server cannot do it.
            ConnectError: The server cannot be reached, or the connection to a shell that is not kept was lost.
        """
        from remote_tool.workflows.terminal.shell import open_shell

        return self._work(lambda context: open_shell(context, request, screen))

    def forward(
        self, request: ForwardRequest, listener: Listener | None = None, *, check: bool = True
    ) -> Results[None]:
        """Forward ports between this machine and servers; return when the job has ended or no server is left.

        It reconnects after a lost connection. To stop it earlier, press Ctrl-C, or end the program that called it.
        """
        from remote_tool.workflows.forward.forward import Listener, forward

        listener = listener or Listener()
        return checked(self._work(lambda context: forward(context, request, listener)), check=check)

    def jupyter(self, request: JupyterRequest, on_open: Callable[[Notebook], None]) -> None:
        """Start Jupyter Lab on one server, or find it there, and forward a port to it; return when it has ended.

        ``on_open`` gets its address here. To end only the forward, call this in a thread of a program that ends, or
        press Ctrl-C.

        Raises:
            UsageError: No server or more than one is selected.
            JobError: Jupyter Lab is not installed there, or does not start.
        """
        from remote_tool.workflows.forward.jupyter import jupyter

        self._work(lambda context: jupyter(context, request, on_open))

    def survey(self, request: CleanRequest | None = None) -> CleanAnswer:
        """Count the files of remote-tool on servers and here, and those that can be removed; remove nothing."""
        from remote_tool.workflows.clean.clean import survey
        from remote_tool.workflows.clean.request import CleanRequest
        from remote_tool.workflows.jobs.listing import refresh

        request = request or CleanRequest()
        return self._work(lambda context: survey(context, request, refresh))

    def clean(self, found: CleanAnswer) -> CleanAnswer:
        """Remove the files that :meth:`survey` found removable, except those in use by now."""
        from remote_tool.workflows.clean.clean import carry_out

        return self._work(lambda context: carry_out(context, found))
