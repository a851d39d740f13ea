"""data-sync: send data sets outside the project to every server, like the project, without removing any."""

from __future__ import annotations

import shlex
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from remote_tool.environments.checks.checks import Check, Status
from remote_tool.errors import RemoteCommandError, SyncError, UsageError
from remote_tool.paths import DataPaths, LocalPaths
from remote_tool.transport.pool import Results
from remote_tool.transport.sync.push import PushResult
from remote_tool.transport.sync.server_script import PLACES
from remote_tool.transport.sync.server_state import COMPLETE
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.sync.options import Through
from remote_tool.workflows.sync.sync import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from remote_tool.config.data_sets import DataSet
    from remote_tool.config.model import Config
    from remote_tool.transport.host import Channel, Completed, Host, Login, UserTerminal
    from remote_tool.transport.pool import HostPool
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.sync.options import SyncOptions

MEBIBYTE = 1024 * 1024
CANNOT_LIE_THERE = 93
BESIDE = ".remote-tool"


async def data_sync(
    context: Context, names: Sequence[str], servers: Sequence[str], options: SyncOptions
) -> dict[str, Results[PushResult]]:
    """Send data sets one by one, to all servers in parallel; return the results by name.

    Raises:
        UsageError: One is not configured, or its local folder has no files.
    """
    config = context.config
    chosen = choose_data_sets(config, names)
    for data_set in chosen:
        _refuse_nothing(data_set)
    return {data_set.name: await _send(context, data_set, servers, options) for data_set in chosen}


def choose_data_sets(config: Config, names: Sequence[str]) -> list[DataSet]:
    """Return the named data sets, or all.

    Raises:
        UsageError: A name is unknown, or no data sets are configured.
    """
    if not config.data:
        raise UsageError(
            "No data sets in configs.yaml", hint="data: {imagenet: {from: ~/imagenet, to: /scratch/imagenet}}"
        )
    for name in names:
        if name not in config.data:
            near = get_close_matches(name, config.data, n=1) or list(config.data)
            raise UsageError(
                f"Unknown data set {name!r}", hint=f"Did you mean {near[0]}? They are under data: in configs.yaml"
            )
    return [config.data[name] for name in dict.fromkeys(names or config.data)]


def _refuse_nothing(data_set: DataSet) -> None:
    folder = data_set.source
    if not folder.is_dir():
        why = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(
            f"{folder}, the data set {data_set.name}, {why}", hint=f"Set data: {data_set.name}: from: in configs.yaml"
        )
    if next(folder.iterdir(), None) is None:
        raise UsageError(f"{folder}, the data set {data_set.name}, is empty", hint="Is its disk mounted?")


async def _send(
    context: Context, data_set: DataSet, servers: Sequence[str], options: SyncOptions
) -> Results[PushResult]:
    options = replace(options, only_adds=f"remote-tool data-sync {data_set.name}", step=f"data {data_set.name}")
    config = _config_of(context.config, data_set)
    pool = _DataPool(context.pool, data_set, context.config.remote.project, makes=not options.dry_run)
    through = Through(context.pool, context.config, data_set.target, options.step)
    chosen = choose_servers(config, servers)
    here = [server for server in chosen if config.servers[server].localhost]
    # On this machine, jobs use the data set where it is.
    found = {server: PushResult(server, "") for server in here}
    if len(here) == len(chosen):
        return Results(found)
    others = [server for server in chosen if server not in here]
    # A sync uses only the pool's hosts.
    sent = await sync(pool, config, others, options, context.report, through)  # type: ignore[arg-type]
    return Results({**found, **sent.values}, sent.errors)


def _config_of(config: Config, data_set: DataSet) -> Config:
    """Return a configuration with the data set as its project."""
    logs = config.local.logs / f"data-{data_set.name}"
    return replace(
        config,
        respect_gitignore=False,
        local=LocalPaths(
            data_set.source, jobs_folder=str(logs), logs_folder=str(logs), exclude=str(logs / "no-exclude")
        ),
        remote=DataPaths(_relative(data_set.target), BESIDE, programs_folder=config.remote.scripts),
        # Its disk may differ from the project's.
        shared=None,
    )


def _relative(target: str) -> str:
    return target.removeprefix("~/").lstrip("/")


class _DataPool:
    """A pool whose scripts find a data set's folder as they find the project's."""

    def __init__(self, pool: HostPool, data_set: DataSet, project: str, *, makes: bool) -> None:
        self._pool = pool
        self._data_set = data_set
        self._project = project
        self._makes = makes

    async def host(self, name: str) -> Host:
        host = await self._pool.host(name)
        await self._see_whether_it_can_lie_there(host)
        return host if self._data_set.target.startswith("~/") else _RootedHost(host)

    async def _see_whether_it_can_lie_there(self, host: Host) -> None:
        target = self._data_set.target
        try:
            await host.run(_place_script(target, self._project, makes=self._makes), label=f"{target} for a data set")
        except RemoteCommandError as error:
            why = error.stderr_tail.strip().rpartition("\n")[2] or str(error)
            raise SyncError(
                f"{host.name}: {target} cannot be the folder of a data set: {why}",
                hint=f"Set data: {self._data_set.name}: to: in configs.yaml to a folder that you can write to",
                server=host.name,
            ) from error


def _place_script(target: str, project: str, *, makes: bool) -> str:
    """Return the script that creates the folder, and refuses one that overlaps the home or the project."""
    folder = f'"$HOME"/{shlex.quote(target[2:])}' if target.startswith("~/") else shlex.quote(target)
    # A sync keeps its state beside the folder, so the parent must be writable.
    make = 'mkdir -p -- "$folder" && (umask 077; mkdir -p -- "${folder%/*}/.${folder##*/}' + f'{BESIDE}")'
    return f"""\
folder={folder} project="$HOME"/{shlex.quote(project)}
# What is not there yet is made where the folder above it really is.
above=$folder rest=
while [ -n "$above" ] && [ ! -d "$above" ]; do rest=/${{above##*/}}$rest; above=${{above%/*}}; done
above=$(cd -P -- "${{above:-/}}" && pwd -P) || exit 1
real=${{above%/}}$rest
project=$(cd -P -- "$project" 2>/dev/null && pwd -P || echo "$project")
home=$(cd -P -- "$HOME" && pwd -P)
refuse() {{ echo "$1" >&2; exit {CANNOT_LIE_THERE}; }}
case "$real/" in "$project"/*) refuse "it is in the project";; esac
case "$project/" in "$real"/*) refuse "the project is in it";; esac
case "$home/" in "$real"/*) refuse "the home folder is in it";; esac
{make if makes else ":"}
"""


class _RootedHost:
    """A server whose scripts use the root of its disk as the home folder, with an unchanged PATH."""

    def __init__(self, host: Host) -> None:
        self._host = host
        places = ":".join(f"$HOME/{place}" for place in PLACES if not place.startswith("/"))
        self._before = f'PATH="$PATH:{places}" remote_tool_home=$HOME\nHOME=/\n'

    @property
    def name(self) -> str:
        return self._host.name

    @property
    def login(self) -> Login:
        return self._host.login

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout: float = 60.0,  # noqa: ASYNC109 - as a host has it
        limit: int = 16 * MEBIBYTE,
        check: bool = True,
        label: str = "",
    ) -> Completed:
        return await self._host.run(
            self._before + script, stdin=stdin, timeout=timeout, limit=limit, check=check, label=label
        )

    def open(
        self, script: str, *, label: str = "", terminal: UserTerminal | None = None
    ) -> AbstractAsyncContextManager[Channel]:
        return self._host.open(self._before + script, label=label, terminal=terminal)

    async def watch(self, seconds: float, report: Callable[[bool], None]) -> None:
        await self._host.watch(seconds, report)


async def check_data_sets(host: Host, data_sets: Mapping[str, DataSet]) -> list[Check]:
    """Return for each data set whether the server has all of it."""
    if not data_sets:
        return []
    answer = await host.run("".join(map(_state_script, data_sets.values())), label="which data sets it has")
    states = answer.stdout.decode(errors="replace").splitlines()
    return [_judge(host.name, each, state) for each, state in zip(data_sets.values(), states, strict=False)]


def _state_script(data_set: DataSet) -> str:
    top = '"$HOME"' if data_set.target.startswith("~/") else ""
    paths = DataPaths(_relative(data_set.target), BESIDE)
    folder, state = (f"{top}/{shlex.quote(path)}" for path in (paths.project, paths.sync_state))
    return f'state=; [ ! -d {folder} ] || {{ read -r state rest < {state}; }} 2>/dev/null; echo "$state"\n'


def _judge(server: str, data_set: DataSet, state: str) -> Check:
    name, command = f"data {data_set.name}", f"remote-tool data-sync {data_set.name} --server {server}"
    if state == COMPLETE:
        return Check(name, Status.OK, data_set.target)
    what = "not all of it" if state else "nothing"
    return Check(name, Status.FAIL, f"{what} at {data_set.target}", command)
