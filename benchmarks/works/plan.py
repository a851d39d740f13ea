"""What the works share: how many servers one needs, and labml_remote where it can take part."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contest import LABML, Contender, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.field import Field, Server


@dataclass(frozen=True)
class Plan:
    """How a work gets its servers.

    Attributes:
        servers: How many.
        make: Makes the work on a field that has them.
    """

    servers: int
    make: Callable[[Field], Work]


def with_labml(field: Field, run: Callable[[], float], **more: object) -> tuple[Contender, ...]:
    """Return labml_remote's way of doing it, twice as it takes long, or nothing where it cannot log in."""
    options: dict[str, Any] = {"rounds": 2, **more}
    return (Contender(LABML, run, **options),) if field.has_labml else ()


def how_many(field: Field) -> str:
    """Return what a title says of the servers."""
    return "1 server" if len(field.servers) == 1 else f"{len(field.servers)} servers"


def by_name(servers: Sequence[Server]) -> list[str]:
    """Return the options that choose servers."""
    return [word for server in servers for word in ("--server", server.name)]


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Return as soon as it is true.

    Raises:
        TimeoutError: It does not become so.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.002)
