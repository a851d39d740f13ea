"""helper-torch-launch: one torchrun per server, all started at once, meeting where every node was seen to reach."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from remote_tool.config.artifacts import wanted_artifacts
from remote_tool.config.devices import devices_of, refuse_missing
from remote_tool.errors import JobError, UsageError
from remote_tool.jobs.job import MASTER_TAG, TORCHRUN_GRACE, JobSpec, LaunchWatch, new_job_id
from remote_tool.launchers.torch import (
    LOOPBACK,
    LaunchNames,
    LaunchPlan,
    LaunchRequest,
    NodeFacts,
    Rendezvous,
    Route,
    check_nodes,
    plan_launch,
    script_file,
)
from remote_tool.transport.pool import Results, on_every
from remote_tool.workflows.events import Notice
from remote_tool.workflows.selection import JobsAnswer, choose_servers
from remote_tool.workflows.start_jobs import send_project, start_specs
from remote_tool.workflows.stop_jobs import stop_on_servers
from remote_tool.workflows.supervisor import call, converse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from remote_tool.config.model import Server
    from remote_tool.launchers.fan_out import FanOutRequest
    from remote_tool.supervisor.artifact_patterns import ArtifactPattern
    from remote_tool.supervisor.framing import Frame
    from remote_tool.workflows.context import Context

MOST_GPUS = 1024
# How long a node tries to reach the first one; a firewall that drops packets is found within this.
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Launcher:
    """How a kind of program is launched.

    Attributes:
        check: Refuses servers that cannot work together.
        plan: Says what each of them runs.
        start: Starts that; what did not start has an error.
        needs_python: Whether it cannot do without a Python on the servers.
    """

    check: Callable[[Sequence[NodeFacts]], None]
    plan: Callable[[LaunchRequest, Sequence[NodeFacts], Rendezvous, LaunchNames], LaunchPlan]
    start: Callable[[Context, LaunchRequest, LaunchPlan, Sequence[JobSpec]], Awaitable[JobsAnswer]]
    needs_python: bool = True


async def launch_torch(context: Context, request: LaunchRequest) -> JobsAnswer:
    """Start one torchrun per server; errors as of :func:`launch`."""
    return await launch(context, request, TORCH)


async def launch(context: Context, request: LaunchRequest, launcher: Launcher) -> JobsAnswer:
    """Send, ask, plan, record and start; when one server does not start, stop the others.

    Where some servers could not be sent to or asked, the answer has their errors, and nothing was started.

    Raises:
        JobError: The servers cannot work together, or one cannot reach the first; nothing was started.
    """
    servers = choose_servers(context.config, request.servers)
    find_script(context, request.command)
    sent = await send_project(context, servers, wanted=request.sync)
    if sent.errors:
        return JobsAnswer((), sent.errors, warnings=sent.warnings, answered=servers)
    facts = await ask_facts(context, request, servers, needs_python=launcher.needs_python)
    if facts.errors:
        return JobsAnswer((), facts.errors, warnings=sent.warnings, answered=servers)
    plan = await make_plan(context, request, list(facts.values.values()), launcher)
    specs = make_specs(plan, request, sent.snapshots, wanted_artifacts(context.config, request.artifacts))
    started = await launcher.start(context, request, plan, specs)
    return replace(await all_or_none(context, started), warnings=sent.warnings)


async def plan_only(context: Context, request: LaunchRequest, launcher: Launcher) -> LaunchPlan:
    """Ask the servers and plan, and start nothing.

    Raises:
        JobError: As of :func:`launch`.
        SomeServersFailedError: Some servers could not be asked.
    """
    servers = choose_servers(context.config, request.servers)
    find_script(context, request.command)
    facts = await ask_facts(context, request, servers, needs_python=launcher.needs_python)
    facts.raise_if_any_failed()
    return await make_plan(context, request, list(facts.values.values()), launcher)


async def make_plan(
    context: Context, request: LaunchRequest, facts: Sequence[NodeFacts], launcher: Launcher
) -> LaunchPlan:
    """Have every server look how it reaches the first, then plan."""
    launcher.check(facts)
    rendezvous = await find_rendezvous(context, request, facts)
    names = LaunchNames(new_job_id(), tuple(new_job_id() for _ in facts), context.config.remote.jobs_name)
    return launcher.plan(request, facts, rendezvous, names)


async def _start_at_once(
    context: Context, _request: LaunchRequest, _plan: LaunchPlan, specs: Sequence[JobSpec]
) -> JobsAnswer:
    return await start_specs(context, specs)


TORCH = Launcher(check_nodes, plan_launch, _start_at_once)


async def all_or_none(context: Context, answer: JobsAnswer) -> JobsAnswer:
    """Stop the nodes that did start when one did not; the answer then has an error for each that did not."""
    failed = {job.server: job for job in answer.jobs if job.server in answer.errors or job.state.is_finished}
    if not failed:
        return answer
    for server, job in failed.items():
        context.report(Notice(server, f"node {job.node_rank} did not start; stopping the rest of the launch"))
    reasons = {server: JobError(f"{server}: {job.reason}", server=server) for server, job in failed.items()}
    stopped = await stop_on_servers(context, [job for job in answer.jobs if not job.state.is_finished])
    current = context.registry.find([job.id for job in answer.jobs])
    jobs = tuple(current.get(job.id, job) for job in answer.jobs)
    return JobsAnswer(jobs, {**reasons, **stopped.errors, **answer.errors})


def make_specs(
    plan: LaunchPlan,
    request: LaunchRequest,
    snapshots: Mapping[str, str],
    artifacts: tuple[ArtifactPattern, ...] = (),
) -> list[JobSpec]:
    """Make the jobs of a plan; the first node's is the master."""
    watch = _make_watch(plan)
    return [
        JobSpec(
            id=node.job_id,
            server=node.server,
            command=node.command,
            environment=node.environment,
            tags=request.tags if node.node_rank else (*request.tags, MASTER_TAG),
            launch_id=plan.launch_id,
            node_rank=node.node_rank,
            grace=TORCHRUN_GRACE,
            rank_offset=node.rank_offset,
            snapshot=snapshots.get(node.server, ""),
            watch=watch,
            artifacts=artifacts,
        )
        for node in plan.nodes
    ]


def _make_watch(plan: LaunchPlan) -> LaunchWatch | None:
    if len(plan.nodes) == 1:
        return None
    servers = tuple(node.server for node in plan.nodes)
    return LaunchWatch(servers, plan.rendezvous.address, plan.rendezvous.watch_port, secrets.token_hex(32))


def find_script(context: Context, command: str) -> None:
    """Refuse a command whose first word is a script that is not in the project.

    Raises:
        UsageError: It is not there.
    """
    file = script_file(command)
    root = context.config.local.root
    if file is not None and not any((folder / file).is_file() for folder in (root, root / "src")):
        raise UsageError(f"{file} is not in {root}", hint="--cmd takes a path from the project folder, like train.py")


async def ask_facts(
    context: Context, request: LaunchRequest, servers: Sequence[str], *, needs_python: bool = True
) -> Results[NodeFacts]:
    """Ask every server what it is."""

    async def ask(server: str) -> NodeFacts:
        host = await context.pool.host(server)
        config = context.config
        question = {
            "launch": True,
            "entry": config.entry_of(server),
            "setup": config.setup_of(server),
            "environment": {**config.variables_of(server), **request.environment},
            "needs_python": needs_python,
        }
        answer = await call(host, config, "facts", question)
        return replace(
            read_facts(server, answer),
            devices=chosen_devices(config.servers[server], request, answer),
            variables=config.variables_of(server),
            listed=config.listed.get(server),
        )

    return await on_every(servers, ask)


def read_facts(server: str, answer: Mapping[str, Any]) -> NodeFacts:
    """Return what a server says of itself, checked.

    Raises:
        JobError: It cannot be read.
    """
    try:
        pairs = [(_address(each["address"]), str(each["interface"])) for each in answer["addresses"]]
        seen = _address(answer["ssh_server_address"]) if answer.get("ssh_server_address") else ""
        return NodeFacts(
            server=server,
            python=str(answer["python"]),
            torch=str(answer.get("torch") or ""),
            nccl=str(answer.get("nccl") or ""),
            gpus=_count(answer["gpus"], MOST_GPUS),
            addresses=_likeliest_first(seen, [address for address, _ in pairs]),
            interfaces=dict(pairs),
            place=json.dumps([answer.get("identity"), answer.get("project")]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: its facts cannot be read ({error!r})", server=server) from error


def chosen_devices(
    server: Server, request: LaunchRequest | FanOutRequest, answer: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the GPUs that a launch or a fan-out uses on a server.

    Raises:
        JobError: It does not have them.
    """
    devices = devices_of(server, request.devices, request.environment)
    gpus, uuids = _read_devices(server.name, answer)
    # In a container AMD's GPUs are not counted.
    if gpus or not server.is_entered:
        refuse_missing(server.name, devices, gpus, uuids)
    return devices


def _read_devices(server: str, answer: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return how many GPUs a server has, and the UUIDs that it knows of."""
    try:
        return _count(answer["devices"], MOST_GPUS), [str(uuid) for uuid in answer["uuids"]]
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(f"{server}: its GPUs cannot be read ({error!r})", server=server) from error


def _address(value: object) -> str:
    """Return an address as it is: it becomes an argument on the other servers."""
    ipaddress.ip_address(str(value))
    return str(value)


def _count(value: object, most: int, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is no number from {least} to {most}")
    return value


def _likeliest_first(seen: str, addresses: Sequence[str]) -> tuple[str, ...]:
    """The address that the SSH connection came in on, then the others; loopback last: it may still be right."""
    others = sorted(addresses, key=lambda address: address.startswith("127.") or address == "::1")
    return tuple(dict.fromkeys(address for address in (seen, *others) if address))


async def find_rendezvous(context: Context, request: LaunchRequest, facts: Sequence[NodeFacts]) -> Rendezvous:
    first = facts[0]
    configured = context.config.servers[first.server].address
    candidates = (configured,) if configured else first.addresses
    if len(facts) == 1 and not configured:
        candidates = (LOOPBACK,)
    secret = secrets.token_hex(16)
    async with _listening(context, first.server, request.master_port or 0, secret) as (
        port,
        watch_port,
    ):
        ports = [port, watch_port]
        probe = {"candidates": list(candidates), "ports": ports, "secret": secret, "timeout": CONNECT_SECONDS}
        answers = await _connect_from_all(context, facts, probe)
    address = _reached_by_all(candidates, answers, port, first.server)
    routes = {server: answer[address] for server, answer in answers.items()}
    return Rendezvous(address, port, routes, watch_port)


@asynccontextmanager
async def _listening(context: Context, server: str, port: int, secret: str) -> AsyncIterator[tuple[int, int]]:
    """Have the first server listen on the two ports that the launch will use; yields them."""
    host = await context.pool.host(server)
    request = {"port": port, "secret": secret}
    # The ports are free again when this is left: torchrun and the supervisor listen there next.
    async with converse(host, context.config, "listen", request, see_its_end=True) as frames:
        yield await _first_ports(server, frames)


async def _first_ports(server: str, frames: AsyncIterator[Frame]) -> tuple[int, int]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS * 4):
            async for frame in frames:
                return _count(frame.header.get("port"), 65535, 1), _count(frame.header.get("watch_port"), 65535, 1)
    except (TimeoutError, ValueError) as error:
        raise JobError(f"{server}: no port to meet at ({error})", server=server) from error
    raise JobError(f"{server}: no port to meet at", server=server)


async def _connect_from_all(
    context: Context, facts: Sequence[NodeFacts], probe: Mapping[str, Any]
) -> dict[str, dict[str, Route]]:
    async def connect(server: str) -> dict[str, Route]:
        host = await context.pool.host(server)
        return _read_routes(server, await call(host, context.config, "connect", probe, within=CONNECT_SECONDS * 4))

    results = await on_every([node.server for node in facts], connect)
    results.raise_if_any_failed()
    return {node.server: results.values[node.server] for node in facts}


def _read_routes(server: str, answer: Mapping[str, Any]) -> dict[str, Route]:
    try:
        return {
            str(each["address"]): Route(str(each.get("local_address") or ""), str(each.get("interface") or ""))
            for each in answer.get("results", [])
            if each.get("ok") is True
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise JobError(f"{server}: what it reaches cannot be read ({error!r})", server=server) from error


def _reached_by_all(
    candidates: Sequence[str], answers: Mapping[str, Mapping[str, Route]], port: int, first: str
) -> str:
    """Return the first candidate that every node reached.

    Raises:
        JobError: There is none; the message names the servers that reach nothing.
    """
    for address in candidates:
        if all(address in answer for answer in answers.values()):
            return address
    lost = [server for server, answer in answers.items() if not answer] or list(answers)
    tried = ", ".join(f"{address}:{port}" for address in candidates)
    raise JobError(
        f"{', '.join(lost)} cannot reach {first} at {tried}",
        hint=f"Set servers.{first}.address in configs.yaml to an address that the others reach, or open the port",
        server=lost[0],
    )
