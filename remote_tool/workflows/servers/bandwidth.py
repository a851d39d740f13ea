"""bandwidth: measure the network bandwidth between servers, pair by pair; a server takes part in one pair at a time."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError, RemoteToolError, SomeServersFailedError, UsageError
from remote_tool.protocol.job_fields import is_seconds
from remote_tool.transport.pool import on_every
from remote_tool.transport.ssh.endpoint import printable
from remote_tool.workflows.agent_client import call, converse
from remote_tool.workflows.events import Outcome, StepEnded, StepStarted
from remote_tool.workflows.launch.node_facts import read_addresses
from remote_tool.workflows.selection import choose_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from remote_tool.protocol.framing import Frame
    from remote_tool.workflows.context import Context

MOST_SECONDS = 60.0
# Overhead of a measurement besides its two directions; the servers time out slightly earlier.
SPARE_SECONDS = 50.0
LISTEN_SECONDS = 20.0
MOST_BITS = 1e14
GIGABIT = 1e9
LONGEST_NAME = 64
METHODS = ("iperf3", "own")
# Decimals by rate in Gbit/s.
DIGITS = ((100.0, 0), (10.0, 1), (0.1, 2))
FIREWALL_HINT = (
    "Let the servers reach each other on all ports, "
    "or set address: of a server in configs.yaml to an address that the others can reach"
)


@dataclass(frozen=True)
class MeasuredLink:
    """The bandwidth from one server to another.

    Attributes:
        source: The server that sends.
        target: The server that receives.
        gbit: 10⁹ bits per second, counted by the receiver; None if not measured.
        round_trip: The median round-trip time in seconds.
        interface: The network interface of the source.
        target_interface: The network interface of the target.
        address: The address at which one of them reached the other.
        method: ``iperf3``, or ``own`` if one of the two lacks iperf3.
        error: The reason why it was not measured, or empty.
    """

    source: str
    target: str
    gbit: float | None = None
    round_trip: float | None = None
    interface: str = ""
    target_interface: str = ""
    address: str = ""
    method: str = ""
    error: str = ""


@dataclass(frozen=True)
class BandwidthAnswer:
    """Bandwidths between the servers.

    Attributes:
        servers: The selected servers, in the order of the configuration or of the request.
        links: Both directions of every pair of reachable servers.
        errors: The servers that could not be reached.
    """

    servers: tuple[str, ...]
    links: tuple[MeasuredLink, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)

    @property
    def slowest(self) -> MeasuredLink | None:
        """Return the link with the least bandwidth."""
        measured = [link for link in self.links if link.gbit is not None]
        return min(measured, key=lambda link: link.gbit or 0.0, default=None)

    @property
    def exit_code(self) -> int:
        """Return 0 if everything was measured, 3 if something was, else the errors' exit code."""
        failed = [link for link in self.links if link.error]
        if not failed and not self.errors:
            return 0
        if self.slowest is not None:
            return 3
        return SomeServersFailedError(self.errors, []).exit_code if self.errors and not failed else 1


async def measure_bandwidth(context: Context, servers: Sequence[str], seconds: float) -> BandwidthAnswer:
    """Measure both directions between each pair of servers; disjoint pairs are measured in parallel.

    Args:
        context: The configuration and connections.
        servers: Names; empty means all.
        seconds: The duration of each direction.

    Raises:
        UsageError: There are fewer than two servers, or the time is invalid.
    """
    names = choose_servers(context.config, servers)
    if len(names) < 2:  # noqa: PLR2004
        raise UsageError("bandwidth needs at least two servers", hint="remote-tool bandwidth --server A --server B")
    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds must be more than 0 and at most {MOST_SECONDS:g}, found {seconds:g}")
    found = await on_every(names, lambda server: _find_addresses(context, server))
    links: list[MeasuredLink] = []
    for pairs in tournament(list(found.values)):
        measured = await asyncio.gather(
            *(_measure_pair(context, pair, found.values[pair[0]], seconds) for pair in pairs)
        )
        links += [link for pair in measured for link in pair]
    return BandwidthAnswer(names, tuple(links), found.errors)


def tournament(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return rounds of disjoint pairs that cover each pair once (the circle method)."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    position = {name: number for number, name in enumerate(names)}
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = [(one, two) for one, two in opposite if one is not None and two is not None]
        rounds.append([(one, two) if position[one] < position[two] else (two, one) for one, two in pairs])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


async def _find_addresses(context: Context, server: str) -> tuple[str, ...]:
    """Return the addresses at which others may reach a server, in the order of a launch."""
    host = await context.pool.host(server)
    found = read_addresses(server, await call(host, context.config, "own_addresses", {}))
    configured = context.config.servers[server].address
    return (configured,) if configured else found


async def _measure_pair(
    context: Context, pair: tuple[str, str], candidates: Sequence[str], seconds: float
) -> tuple[MeasuredLink, MeasuredLink]:
    """Measure both directions of a pair; if this fails, both links have the error."""
    first, second = pair
    step, began = f"bandwidth with {second}", time.monotonic()
    context.report(StepStarted(first, step))
    try:
        links = await _measure(context, pair, candidates, seconds)
    except RemoteToolError as error:
        why = error.message
        context.report(StepEnded(first, step, Outcome.FAILED, why, time.monotonic() - began))
        return MeasuredLink(first, second, error=why), MeasuredLink(second, first, error=why)
    context.report(StepEnded(first, step, Outcome.DONE, _describe(*links), time.monotonic() - began))
    return links


def _describe(there: MeasuredLink, back: MeasuredLink) -> str:
    assert there.gbit is not None
    assert back.gbit is not None
    assert there.round_trip is not None
    interfaces = f"{there.interface or '?'} to {there.target_interface or '?'}"
    rates = f"{readable_rate(there.gbit)} Gbit/s there, {readable_rate(back.gbit)} back"
    return f"{rates}, {there.round_trip * 1000:.2f} ms, {interfaces}"


def readable_rate(gbit: float) -> str:
    """Format Gbit/s with about three significant digits: 98.3, 9.41, 0.094."""
    digits = next((digits for least, digits in DIGITS if gbit >= least), 3)
    return f"{gbit:.{digits}f}"


async def _measure(
    context: Context, pair: tuple[str, str], candidates: Sequence[str], seconds: float
) -> tuple[MeasuredLink, MeasuredLink]:
    first, second = pair
    secret = secrets.token_hex(16)
    async with _listening(context, first, {"secret": secret, "seconds": seconds}) as (port, has_iperf):
        request = {
            "candidates": list(candidates),
            "port": port,
            "secret": secret,
            "seconds": seconds,
            "iperf3": has_iperf,
        }
        host = await context.pool.host(second)
        try:
            answer = await call(host, context.config, "bandwidth_connect", request, within=2 * seconds + SPARE_SECONDS)
        except JobError as error:
            text = f"{first} and {second}: {error.message}"
            raise JobError(text, hint=FIREWALL_HINT, server=second) from None
    link = _read_link(pair, answer)
    there = replace(link, gbit=_rate(second, answer.get("back")))
    back = replace(
        link,
        source=second,
        target=first,
        interface=link.target_interface,
        target_interface=link.interface,
        gbit=_rate(second, answer.get("there")),
    )
    return there, back


@asynccontextmanager
async def _listening(context: Context, server: str, request: Mapping[str, Any]) -> AsyncIterator[tuple[int, bool]]:
    """Have a server listen for a measurement; yield its port, and whether it has iperf3."""
    host = await context.pool.host(server)
    async with converse(host, context.config, "bandwidth_listen", request) as frames:
        header = await _first_header(server, frames)
        port, has_iperf = header.get("port"), header.get("iperf3")
        if type(port) is not int or not 0 < port < 65536:  # noqa: PLR2004
            raise JobError(f"{server}: no free port to measure on ({port!r:.40})", server=server)
        yield port, has_iperf is True


async def _first_header(server: str, frames: AsyncIterator[Frame]) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(LISTEN_SECONDS):
            async for frame in frames:
                return frame.header
    except TimeoutError:
        pass
    raise JobError(f"{server}: no free port to measure on", server=server)


def _read_link(pair: tuple[str, str], answer: Mapping[str, Any]) -> MeasuredLink:
    """Parse the part of an answer that is common to both directions; the second of the pair has connected."""
    first, second = pair
    try:
        address = str(ipaddress.ip_address(answer["address"]))
    except (KeyError, ValueError):
        # A configured address may be a name.
        address = printable(str(answer.get("address", "")))[:LONGEST_NAME]
    if answer.get("method") not in METHODS:
        raise _unreadable(second, answer.get("method"))
    return MeasuredLink(
        first,
        second,
        round_trip=_number(second, answer.get("round_trip"), LISTEN_SECONDS),
        interface=_name(answer.get("peer_interface")),
        target_interface=_name(answer.get("interface")),
        address=address,
        method=str(answer["method"]),
    )


def _name(value: object) -> str:
    return printable(value)[:LONGEST_NAME] if isinstance(value, str) else ""


def _rate(server: str, value: object) -> float:
    return _number(server, value, MOST_BITS) / GIGABIT


def _number(server: str, value: object, most: float) -> float:
    if not isinstance(value, int | float) or not is_seconds(value, most):
        raise _unreadable(server, value)
    return float(value)


def _unreadable(server: str, value: object) -> JobError:
    return JobError(f"{server}: cannot read what it measured ({value!r:.40})", server=server)
