"""Checks between servers: versions and clocks that must agree on all servers that train together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from remote_tool.environments.checks.checks import Check, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SMALL_SKEW, LARGE_SKEW = 2.0, 60.0
SYNCHRONIZE = "sudo chronyc makestep"


def _as_is(value: str) -> str:
    return value


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# By name of a check: the status of a difference, the part of the value that counts, the hint.
_ALIKE: dict[str, tuple[Status, Callable[[str], str], str]] = {
    "python": (Status.FAIL, _minor, "remote-tool setup --force --server {server}"),
    "torch": (Status.FAIL, _as_is, "remote-tool update-packages --force --server {server}"),
    "nccl": (Status.FAIL, _as_is, "remote-tool update-packages --force --server {server}"),
    "driver": (Status.WARN, _as_is, "install the driver of the other servers, {most}"),
    "gpus": (Status.WARN, _as_is, "the slowest GPU limits the speed; choose servers with --server"),
}


@dataclass(frozen=True)
class Clock:
    """How far a server's clock is ahead of this computer's.

    Attributes:
        offset: In seconds; negative: behind.
        doubt: The maximum error, in seconds.
    """

    offset: float
    doubt: float


def compare(checks: Mapping[str, Sequence[Check]]) -> dict[str, list[Check]]:
    """Return the checks of all servers; those that differ from most servers are marked."""
    usual = {name: _most_common(name, checks) for name in _ALIKE}
    return {server: [_against(check, usual, server) for check in own] for server, own in checks.items()}


def _most_common(name: str, checks: Mapping[str, Sequence[Check]]) -> str | None:
    """Return the value of most servers; in a tie, the first server's."""
    _, counted, _ = _ALIKE[name]
    values = Counter(counted(check.value) for own in checks.values() for check in own if _counts(check, name))
    return values.most_common(1)[0][0] if values else None


def _counts(check: Check, name: str) -> bool:
    return check.name == name and check.status in {Status.OK, Status.WARN}


def _against(check: Check, usual: Mapping[str, str | None], server: str) -> Check:
    most = usual.get(check.name)
    if most is None or not _counts(check, check.name):
        return check
    status, counted, hint = _ALIKE[check.name]
    if counted(check.value) == most:
        return check
    differing = Check(check.name, check.status, f"{check.value}; others: {most}")
    return differing.worse(status, hint.format(server=server, most=most))


def check_clocks(clocks: Mapping[str, Clock | None]) -> dict[str, Check]:
    """Check each server's clock against this computer's and the other servers'."""
    known = [clock for clock in clocks.values() if clock is not None]
    spread = max((_apart(one, other) for one, other in combinations(known, 2)), default=0.0)
    ours_differs = len(known) > 1 and spread <= SMALL_SKEW
    return {server: _clock(clock, ours_differs=ours_differs) for server, clock in clocks.items()}


def _apart(one: Clock, other: Clock) -> float:
    """Return the minimum difference of two clocks."""
    return max(0.0, abs(one.offset - other.offset) - one.doubt - other.doubt)


def _clock(clock: Clock | None, *, ours_differs: bool) -> Check:
    if clock is None:
        return Check("clock", Status.UNKNOWN, "unknown")
    wrong = max(0.0, abs(clock.offset) - clock.doubt)
    way = "ahead" if clock.offset > 0 else "behind"
    if wrong <= SMALL_SKEW:
        return Check("clock", Status.OK, f"within {max(0.1, abs(clock.offset) + clock.doubt):.1f} s of this computer's")
    value = f"{_readable(abs(clock.offset))} {way} of this computer's" if way == "ahead" else _behind(clock)
    if ours_differs:
        return Check("clock", Status.WARN, value, "the servers agree with each other; set the clock of this computer")
    return Check("clock", Status.FAIL if wrong > LARGE_SKEW else Status.WARN, value, SYNCHRONIZE)


def _behind(clock: Clock) -> str:
    return f"{_readable(abs(clock.offset))} behind this computer's"


def _readable(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
