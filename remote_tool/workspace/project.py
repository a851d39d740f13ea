"""A project: its configuration, its records, and the connections that its workflows run on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from remote_tool.config.loading import load, remarks
from remote_tool.errors import ConnectError, UsageError
from remote_tool.jobs.listed_hosts import recall_hosts, remember_hosts
from remote_tool.jobs.registry import Registry
from remote_tool.paths import current_folder, find_root
from remote_tool.redaction import never_redact
from remote_tool.transport.pool import HostPool, Results
from remote_tool.workflows.context import Context
from remote_tool.workflows.events import Notice, Report, ignore
from remote_tool.workflows.selection import JobsAnswer, choose_servers
from remote_tool.workspace.background import CLOSE_SECONDS, BackgroundWork, run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from remote_tool.config.hosts import ListedHost
    from remote_tool.config.model import Config
    from remote_tool.config.servers import Server
    from remote_tool.workflows.artifacts.answer import PullAnswer
    from remote_tool.workflows.fan_out.answer import FanOutAnswer
    from remote_tool.workflows.sweep.answer import SweepAnswer

T = TypeVar("T")
C = TypeVar("C", bound="JobsAnswer | PullAnswer | FanOutAnswer | SweepAnswer | Results[Any]")


@dataclass(frozen=True)
class Hooks:
    """The callbacks of a user interface.

    Attributes:
        report: Called with every event of a workflow.
        trace: Called after each remote command with the server, a label and the seconds it took.
        ask_password: Asks the user for a password; returns None when nobody can answer.
        confirm: Shows the user new host keys and returns whether to trust them. Without it, no password is sent to a
            host whose key is new.
        adopt: Asks the user whether to share a server's folder that another workspace has sent; without it, nothing is
            sent there.
        allow: Asks the user whether servers may reach a host through this machine that is not one of
            ``internet_hosts``; without it, they may not.
    """

    report: Report = ignore
    trace: Callable[[str, str, float], None] | None = None
    ask_password: Callable[[str], str | None] | None = None
    confirm: Callable[[str], bool] | None = None
    adopt: Callable[[str], bool] | None = None
    allow: Callable[[str], bool] | None = None


class Project:
    """A project folder, with the means to run workflows on its servers."""

    def __init__(self, config: Config, hooks: Hooks | None = None) -> None:
        self.config = config
        self.hooks = hooks or Hooks()
        self._registry = Registry(config.local.jobs)
        never_redact(name for server in config.servers.values() for name in (server.name, server.hostname))

    @classmethod
    def find(cls, start: Path | None = None, hooks: Hooks | None = None) -> Self:
        """Find the workspace of the current folder, or of a folder above it, as git does.

        Raises:
            UsageError: There is no workspace.
            ConfigError: The configuration is invalid.
        """
        config = load(find_root(start or current_folder()))
        report = (hooks or Hooks()).report
        for remark in remarks(config):
            report(Notice("", remark))
        return cls(recall_hosts(config, Registry(config.local.jobs), lambda text: report(Notice("", text))), hooks)

    def in_folder(self, workdir: str) -> Self:
        """Return this workspace with a default working folder for commands; a configured ``workdir`` wins."""
        if self.config.workdir is not None:
            return self
        return type(self)(replace(self.config, workdir=workdir), self.hooks)

    def with_hosts(self, hosts: str | Sequence[ListedHost], *, private_key: Path | str | None = None) -> Self:
        """Return this workspace with the hosts of a list, such as ``10.0.0.1:2,10.0.0.2:2``, instead of its servers.

        ``private_key`` is the file of the key for all of them, also in later commands.

        Raises:
            UsageError: The list is invalid, or a host has the name of another configured server.
        """
        from remote_tool.config.hosts import parse_hosts

        listed = parse_hosts(hosts) if isinstance(hosts, str) else hosts
        key = None if private_key is None else _find_key(private_key)
        config = remember_hosts(self.config, self._registry, listed, private_key=key, usual_user=_usual_user)
        return type(self)(config, self.hooks)

    def with_hostfile(self, file: Path | str, *, private_key: Path | str | None = None) -> Self:
        """Return this workspace with the hosts of an MPI, DeepSpeed or Horovod hostfile instead of its servers.

        Raises:
            ConfigError: The file cannot be read or is invalid; lists every problem.
            UsageError: A host has the name of another configured server.
        """
        from pathlib import Path

        from remote_tool.config.hosts import load_hostfile

        return self.with_hosts(load_hostfile(Path(file)), private_key=private_key)

    @property
    def root(self) -> Path:
        """The project folder."""
        return self.config.local.root

    def _work_on_servers(
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

        return checked(self._work(work), check=check)

    def _work(self, work: Callable[[Context], Coroutine[Any, Any, T]], close_seconds: float = CLOSE_SECONDS) -> T:
        return run_in_background(self._connected(work), close_seconds)

    def _begin(self, work: Callable[[Context], Coroutine[Any, Any, T]]) -> BackgroundWork[T]:
        return BackgroundWork(self._connected(work))

    async def _connected(self, work: Callable[[Context], Coroutine[Any, Any, T]]) -> T:
        async with self._pool() as pool:
            return await work(Context(self.config, pool, self._registry, self.hooks.report))

    def _pool(self) -> HostPool:
        def notice(server: str, text: str) -> None:
            self.hooks.report(Notice(server, text))

        hooks = self.hooks
        return HostPool(
            self.config,
            report=notice,
            trace=hooks.trace,
            ask_password=hooks.ask_password,
            confirm=hooks.confirm,
            adopt=hooks.adopt,
            allow=hooks.allow,
        )


def _usual_user(server: Server) -> str:
    """Return the login name for a server without a configured one: of ~/.ssh/config, else the default."""
    from remote_tool.transport.ssh.ssh_config import resolve_endpoints

    try:
        return resolve_endpoints(server)[-1].username
    except ConnectError:
        # The login will report the problem of that file.
        return ""


def _find_key(file: Path | str) -> Path:
    from pathlib import Path

    path = Path.cwd() / Path(file).expanduser()
    if not path.is_file():
        raise UsageError(f"--private-key {file}: no such file", hint="ls ~/.ssh")
    return path


def checked(answer: C, *, check: bool) -> C:
    """Return an answer; with check, raise the error of a server that failed."""
    if check:
        answer.raise_if_any_failed()
    return answer
