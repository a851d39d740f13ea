"""Validate ``launch``: a command that starts a shell and passes stdin on, such as ``docker exec -i NAME``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PASSES_STDIN = re.compile("--interactive(=true)?|-[a-zA-Z]*i[a-zA-Z]*(=true)?")
_ENGINES = ("docker", "podman", "nerdctl")
_CLUSTERS = ("kubectl", "oc")


@dataclass(frozen=True)
class _Options:
    """The options of ``exec`` that take a value.

    Attributes:
        short: Their letters.
        long: Their names.
    """

    short: str
    long: frozenset[str]


_OF_ENGINES = _Options(
    "euw", frozenset({"--env", "--env-file", "--user", "--workdir", "--detach-keys", "--preserve-fds", "--cidfile"})
)
_OF_CLUSTERS = _Options(
    "cfns",
    frozenset({"--container", "--filename", "--namespace", "--server", "--context", "--cluster", "--kubeconfig"})
    | {"--user", "--token", "--as", "--pod-running-timeout", "--request-timeout"},
)


def begins_shell(words: Sequence[str]) -> bool:
    """Return whether a command can start a job: a container engine's must pass stdin on and start no container."""
    program = PurePosixPath(words[0]).name if words else ""
    if program in _CLUSTERS and "exec" not in words:
        return True
    if program in _ENGINES + _CLUSTERS:
        return "exec" in words and any(_PASSES_STDIN.fullmatch(word) for word in words)
    return bool(words)


def wants_terminal(words: Sequence[str]) -> bool:
    """Return whether the command requests a terminal, like ``docker exec -it NAME``."""
    found = _find_exec(words)
    return found is not None and _without_terminal(found[1], found[2]) != list(found[1])


def as_started(words: Sequence[str]) -> list[str]:
    """Return the command for servers: without a terminal, which no job has, and with kubectl's ``--``."""
    found = _find_exec(words)
    if found is None:
        return list(words)
    before, after, options = found
    started = _without_terminal(after, options)
    if options is _OF_CLUSTERS and "--" not in started:
        # kubectl would parse the shell's options as its own otherwise.
        started.append("--")
    return [*before, *started]


def _find_exec(words: Sequence[str]) -> tuple[list[str], list[str], _Options] | None:
    """Return an engine's words up to ``exec``, those after it, and its options; None for others."""
    names = [PurePosixPath(word).name for word in words]
    for place, name in enumerate(names):
        if name in _ENGINES + _CLUSTERS and "exec" in words[place:]:
            end = place + list(words[place:]).index("exec") + 1
            return list(words[:end]), list(words[end:]), _OF_CLUSTERS if name in _CLUSTERS else _OF_ENGINES
    return None


def _without_terminal(words: Sequence[str], options: _Options) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        is_option = word.startswith("-") and word not in {"-", "--"}
        if word == "--" or (not is_option and options is _OF_ENGINES):
            # The rest is the command's own; kubectl's options may follow the pod.
            return [*kept, word, *rest]
        kept += _without_tty(word, options, rest) if is_option else [word]
    return kept


def _without_tty(word: str, options: _Options, rest: Iterator[str]) -> list[str]:
    """Return an option with its value, without the letter t; nothing if it was only that."""
    if word.startswith("--"):
        name, has_value, _ = word.partition("=")
        value = [] if has_value or name not in options.long else [next(rest, "")]
        return [] if name == "--tty" else [word, *value]
    flags, valued = re.fullmatch(f"-([^={options.short}]*)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
    flags = flags.replace("t", "")
    value = [next(rest, "")] if len(valued) == 1 else []
    if not flags and valued[:1] in {"", "="}:
        return []
    return [f"-{flags}{valued}", *value]
