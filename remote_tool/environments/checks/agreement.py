"""The checks between servers that train together: their versions and clocks must agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from remote_tool.environments.checks.checks import NOT_INSTALLED, Check, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SMALL_SKEW, LARGE_SKEW = 2.0, 60.0
SYNCHRONIZE = "sudo chronyc makestep"


def _whole(value: str) -> str:
    return value


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# By name of a check: the status of a difference, the part of the value to compare, the hint.
_COMPARED: dict[str, tuple[Status, Callable[[str], str], str]] = {
    "python": (Status.FAIL, _minor, "remote-tool setup --force --server {server}"),
    "torch": (Status.FAIL, _whole, "remote-tool update-packages --force --server {server}"),
    "nccl": (Status.FAIL, _whole, "remote-tool update-packages --force --server {server}"),
    "driver": (Status.WARN, _whole, "install the driver of the other servers, {most}"),
    "gpus": (Status.WARN, _whole, "the slowest GPU limits the speed; choose servers with --server"),
}


@dataclass(frozen=True)
class Clock:
    """A server's clock, compared with this computer's.

    Attributes:
        offset: Seconds ahead; negative if behind.
        max_error: In seconds.
    """

    offset: float
    max_error: float


def compare(checks: Mapping[str, Sequence[Check]]) -> dict[str, list[Check]]:
    """Return the checks of all servers, with another status where a value differs from most servers."""
    usual = {name: _most_common(name, checks) for name in _COMPARED}
    return {server: [_compare_with(usual, check, server) for check in own] for server, own in checks.items()}


def _most_common(name: str, checks: Mapping[str, Sequence[Check]]) -> str | None:
    """Return the value of most servers; in a tie, the first server's."""
    _, part_of, _ = _COMPARED[name]
    found = [check.value for own in checks.values() for check in own if _has_value(check, name)]
    # Who lacks it is told, not who has it.
    values = Counter(part_of(value) for value in found if value != NOT_INSTALLED)
    return values.most_common(1)[0][0] if values else None


def _has_value(check: Check, name: str) -> bool:
    return check.name == name and check.status in {Status.OK, Status.WARN}


def _compare_with(usual: Mapping[str, str | None], check: Check, server: str) -> Check:
    most = usual.get(check.name)
    if most is None or not _has_value(check, check.name):
        return check
    status, part_of, hint = _COMPARED[check.name]
    if part_of(check.value) == most:
        return check
    differing = Check(check.name, check.status, f"{check.value}; others: {most}")
    return differing.with_status(status, hint.format(server=server, most=most))


def check_clocks(clocks: Mapping[str, Clock | None]) -> dict[str, Check]:
    """Check each server's clock against this computer's and the other servers'."""
    known = [clock for clock in clocks.values() if clock is not None]
    spread = max((_least_difference(one, other) for one, other in combinations(known, 2)), default=0.0)
    servers_agree = len(known) > 1 and spread <= SMALL_SKEW
    return {server: _clock(clock, servers_agree=servers_agree) for server, clock in clocks.items()}


def _least_difference(one: Clock, other: Clock) -> float:
    return max(0.0, abs(one.offset - other.offset) - one.max_error - other.max_error)


def _clock(clock: Clock | None, *, servers_agree: bool) -> Check:
    if clock is None:
        return Check("clock", Status.UNKNOWN, "unknown")
    error = max(0.0, abs(clock.offset) - clock.max_error)
    if error <= SMALL_SKEW:
        bound = max(0.1, abs(clock.offset) + clock.max_error)
        return Check("clock", Status.OK, f"within {bound:.1f} s of this computer's")
    value = f"{_readable(abs(clock.offset))} {'ahead of' if clock.offset > 0 else 'behind'} this computer's"
    if servers_agree:
        return Check("clock", Status.WARN, value, "the servers agree with each other; set the clock of this computer")
    return Check("clock", Status.FAIL if error > LARGE_SKEW else Status.WARN, value, SYNCHRONIZE)


def _readable(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
