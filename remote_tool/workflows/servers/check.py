"""check: find out whether servers are ready for training together, and change nothing.

A server that fails is a part of the answer, not an error.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from remote_tool.environments.checks.agreement import Clock, check_clocks, compare
from remote_tool.environments.checks.checks import Check, ServerInspection, Status, check_server
from remote_tool.environments.checks.machine import GPU_SECONDS, Machine, machine_script, parse_machine, split_answer
from remote_tool.environments.facts import facts_script, parse_facts
from remote_tool.errors import HostKeyError, LoginError, RemoteToolError, SomeServersFailedError, SyncError
from remote_tool.readable import readable_size
from remote_tool.transport.pool import on_every
from remote_tool.transport.sync.local_rsync import find_local_rsync
from remote_tool.workflows.agent_program import source_archive
from remote_tool.workflows.selection import choose_servers
from remote_tool.workflows.slurm.partitions import check_slurm
from remote_tool.workflows.slurm.scheduler import refuse_scheduled
from remote_tool.workflows.sync.data_sets import check_data_sets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.transport.host import Channel, Host, Login
    from remote_tool.transport.pool import HostPool
    from remote_tool.workflows.context import Context
    from remote_tool.workflows.exercise.exercise import Exercise

# For all facts without nvidia-smi, which is run up to four times: they take a second, after the programs of the login.
OTHER_SECONDS = 20.0
LONGEST_ANSWER = 4 * 1024 * 1024


@dataclass(frozen=True)
class ServerReport:
    """The checks of a server.

    Attributes:
        name: The server.
        checks: The checks, in the order in which they are shown.
    """

    name: str
    checks: tuple[Check, ...]

    @property
    def has_failed(self) -> bool:
        """Return whether a check failed."""
        return any(check.status is Status.FAIL for check in self.checks)


@dataclass(frozen=True)
class CheckAnswer:
    """The checks of all servers.

    Attributes:
        servers: All checked servers, including unreachable ones.
        errors: The error of each server that did not answer.
        exercise: What an exercise measured; None without one.
    """

    servers: tuple[ServerReport, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    exercise: Exercise | None = None

    @property
    def is_fit(self) -> bool:
        """Return whether every server answered and no check failed."""
        return not self.errors and not any(server.has_failed for server in self.servers)

    @property
    def exit_code(self) -> int:
        """Return 3 or 4 when servers did not answer, else 1 when a check failed."""
        if self.errors:
            answered = [server.name for server in self.servers if server.name not in self.errors]
            return SomeServersFailedError(self.errors, answered).exit_code
        return 0 if self.is_fit else 1


@dataclass(frozen=True)
class _ServerAnswer:
    """The answer of a server; ``clock`` is None if unknown."""

    login: Login
    checks: list[Check]
    clock: Clock | None
    data: list[Check] = field(default_factory=list)


async def check(
    pool: HostPool, config: Config, servers: Sequence[str] = (), *, gpu_seconds: float = GPU_SECONDS
) -> CheckAnswer:
    """Ask every server in one round trip after the login, and judge the answers; raise for no server."""
    names = choose_servers(config, servers)
    host_names = _configured_names(config)

    async def on_one(name: str) -> _ServerAnswer:
        host = await pool.host(name, logs_in=True)
        answer = await _ask(host, config.for_server(name), host_names, gpu_seconds)
        data = {} if config.servers[name].localhost else config.data
        slurm = config.servers[name].slurm
        scheduled = [] if slurm is None else await check_slurm(host, slurm)
        return replace(answer, data=[*scheduled, *await check_data_sets(host, data)])

    results = await on_every(names, on_one)
    checks = compare({name: answer.checks for name, answer in results.values.items()})
    clocks = check_clocks({name: answer.clock for name, answer in results.values.items()})
    reports = [
        ServerReport(
            name,
            (
                *_login_checks(results.values[name].login, is_here=config.servers[name].localhost),
                *checks[name],
                clocks[name],
                *results.values[name].data,
            ),
        )
        if name in results.values
        else ServerReport(name, _failed_checks(name, results.errors[name]))
        for name in names
    ]
    return CheckAnswer(tuple(reports), results.errors)


async def check_and_exercise(context: Context, servers: Sequence[str], seconds: float) -> CheckAnswer:
    """Check servers, then exercise those that answered for at most this many seconds."""
    from remote_tool.workflows.exercise.exercise import check_seconds, exercise  # noqa: PLC0415 - loads what launches need

    check_seconds(seconds)
    chosen = choose_servers(context.config, servers)
    refuse_scheduled(context.config, chosen, "--exercise", "remote-tool check, without --exercise")
    answer = await check(context.pool, context.config, servers)
    names = [report.name for report in answer.servers if report.name not in answer.errors]
    exercised = await exercise(context, names, seconds) if names else None
    if exercised is None:
        return answer
    reports = [
        replace(report, checks=(*report.checks, *exercised.checks.get(report.name, ()))) for report in answer.servers
    ]
    return replace(answer, servers=tuple(reports), exercise=exercised)


def _configured_names(config: Config) -> tuple[str, ...]:
    """Return the names in ``address:``, by which servers should reach each other."""
    return tuple(
        dict.fromkeys(
            server.address
            for server in config.servers.values()
            if server.address is not None and not _is_number(server.address)
        )
    )


def _is_number(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


async def _find_rsync_release() -> str:
    try:
        return (await find_local_rsync()).release
    except SyncError:
        return ""


async def _ask(host: Host, config: Config, host_names: Sequence[str], gpu_seconds: float) -> _ServerAnswer:
    facts = facts_script(config, source_archive()[0], probe=True, look_only=True)
    script = machine_script(config, facts, host_names, gpu_seconds=gpu_seconds)
    asked_at, seconds = time.time(), OTHER_SECONDS + 2 * gpu_seconds
    async with host.open(script, label="what it has for training") as channel:
        await channel.write_eof()
        await channel.start()
        answer, answered_at = await _read_answer(channel, seconds)
    machine_answer, facts_answer = split_answer(answer)
    machine = parse_machine(machine_answer)
    if not facts_answer:
        problem = f"did not answer within {seconds:.0f} s"
        if len(answer) >= LONGEST_ANSWER:
            problem = f"sent more than {readable_size(LONGEST_ANSWER)} that are no answer"
        elif time.time() - asked_at < seconds:
            problem = "did not answer completely"
        raise RemoteToolError(
            f"{host.name} {problem}",
            hint=f"remote-tool run --server {host.name} --cmd 'df -h; uptime'",
            server=host.name,
        )
    server_facts, local_rsync = parse_facts(host.name, facts_answer), await _find_rsync_release()
    server = ServerInspection(config, server_facts, machine, host_names, local_rsync)
    return _ServerAnswer(host.login, check_server(server), _clock_of(machine, asked_at, answered_at))


async def _read_answer(channel: Channel, seconds: float) -> tuple[bytes, float]:
    """Read output with a timeout, also if it is incomplete; return it with the time of its first byte."""
    answer, answered_at = bytearray(), 0.0
    try:
        async with asyncio.timeout(seconds):
            while len(answer) < LONGEST_ANSWER:
                data = await channel.read()
                if not data:
                    await channel.wait()
                    break
                answered_at = answered_at or time.time()
                answer += data
    except TimeoutError:
        pass
    return bytes(answer), answered_at


def _clock_of(machine: Machine, asked_at: float, answered_at: float) -> Clock | None:
    """Compare a clock with the middle of the interval in which it was read."""
    if machine.clock is None:
        return None
    clock = machine.clock if machine.clock_has_fractions else machine.clock + 0.5
    uncertainty = (answered_at - asked_at) / 2 + (0.0 if machine.clock_has_fractions else 0.5)
    return Clock(clock - (asked_at + answered_at) / 2, abs(uncertainty))


def _login_checks(login: Login, *, is_here: bool) -> list[Check]:
    if is_here:
        return [Check("login", Status.OK, f"{login.username}, this machine")]
    login_check = Check("login", Status.OK, f"{login.username}, {login.method}")
    if login.is_new:
        hint = "compare with the server's own key: ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub"
        return [login_check, Check("host key", Status.WARN, f"new: {login.host_key}", hint)]
    known = login.host_key.partition(" ")[0]
    return [login_check, Check("host key", Status.OK, f"known ({known})" if known else "certificate")]


def _failed_checks(name: str, error: RemoteToolError) -> tuple[Check, ...]:
    """Return the failed check for a server that did not answer."""
    hint = error.hint or f"remote-tool check --server {name} -v"
    if isinstance(error, HostKeyError):
        return (Check("host key", Status.FAIL, error.message, hint),)
    if isinstance(error, LoginError):
        return (Check("login", Status.FAIL, error.message, hint),)
    return (Check("connection", Status.FAIL, error.message, hint),)
