"""The request for a sweep, and its command: the placeholders, and the files that it seems to write."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from remote_tool.config.devices import VISIBLE
from remote_tool.config.limits import check_texts
from remote_tool.errors import UsageError
from remote_tool.launchers.command import with_interpreter
from remote_tool.launchers.job_request import JobRequest
from remote_tool.workflows.sweep.values import NUMBER, Random, SweepSpec
from remote_tool.workflows.work.placeholders import fill, is_in_quotes, names_in, parse_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# How training scripts name the option for what they write.
_OPTION = re.compile(
    r"--?(?:o|out|outputs?|results?|save|logdir|"
    r"(?:out|outputs?|results?|save|checkpoints?|ckpts?|logs?|runs?|exp|experiment)"
    r"[-_.]?(?:to|dir|directory|folder|path|file|root))",
    re.IGNORECASE,
)
_REDIRECTS = {">", ">>", ">|", "&>", "&>>"}
# Wildcards, variables of the shell, and placeholders may stand for another name in each combination.
_VARIES = re.compile(r"[*?\[\]{}$`]")
_DEVICES = "/dev/"


@dataclass(frozen=True)
class SweepRequest(JobRequest):
    """A job for each combination of parameters; see :class:`JobRequest` for the options that are not listed here.

    Attributes:
        command: For the shell, with a placeholder for each parameter, such as ``{lr}``; a ``.py`` file as first word
            runs with the environment's Python.
        grid: The values of each parameter, as a sequence, or as a text such as ``0.1,0.01`` or ``1..5``.
        random: Combinations to draw, such as ``Random(20, {"lr": "log:1e-5..1e-1"}, seed=7)``.
        combinations: Combinations that are listed one by one.
        gpus: GPUs of each job; 0: one where a server has GPUs, unless ``per_server`` is given.
        per_server: Run this many jobs at once on each server, without leasing GPUs; None: one on a server without GPUs.
    """

    grid: Mapping[str, Sequence[object] | str] = field(default_factory=dict, kw_only=True)
    random: Random = field(default_factory=Random, kw_only=True)
    combinations: Sequence[Mapping[str, object]] = field(default=(), kw_only=True)
    per_server: int | None = field(default=None, kw_only=True)

    def __post_init__(self, env: Mapping[str, str] | None) -> None:
        """Refuse an invalid request."""
        check_texts(self.command, env or {})
        example = "helper-sweep --cmd 'train.py --lr {lr}' --grid lr=0.1,0.01"
        self._check_options(env, example, tags_besides=1, may_wait=True)
        if self.after:
            raise UsageError("--after is only for job-run")
        if self.gpus and self.per_server is not None:
            raise UsageError(
                "--gpus and --per-server cannot be combined", hint="With --gpus, free GPUs decide how many run at once"
            )
        if self.per_server is not None and self.per_server < 1:
            raise UsageError(f"--per-server must be at least 1, found {self.per_server}")
        object.__setattr__(self, "random", self.random.seeded())
        _check_command(self.command, self.made)

    @cached_property
    def made(self) -> tuple[dict[str, str], ...]:
        """All combinations, by number."""
        return SweepSpec(self.command, self.grid, self.random, self.combinations).made()

    @property
    def may_lease(self) -> bool:
        """Return whether its jobs wait for GPUs on servers that have some."""
        return self.per_server is None and not self.devices and VISIBLE not in self.environment


def command_of(template: str, number: int, combination: Mapping[str, str]) -> str:
    """Return the command of a combination; each value is one quoted word, unless it needs no quotes."""
    values = {**combination, NUMBER: str(number)}
    return fill(parse_words(with_interpreter(template)), {name: shlex.quote(value) for name, value in values.items()})


def shared_outputs(command: str, artifacts: Sequence[str]) -> tuple[str, ...]:
    """Return the files and folders that every combination writes under the same name.

    Args:
        command: Of the sweep, with placeholders.
        artifacts: The patterns of the files to fetch; one without a wildcard names a file.
    """
    found = [*_written(command), *artifacts]
    names = (name.removeprefix("./") for name in found if name and not _VARIES.search(name))
    return tuple(dict.fromkeys(name for name in names if not name.startswith(_DEVICES)))


def _check_command(command: str, made: Sequence[Mapping[str, str]]) -> None:
    """Refuse a placeholder that is unknown, unused, or in quotes that its value would break."""
    known, used = (*made[0], NUMBER), set()
    for name, before in names_in(parse_words(command)):
        if name not in known:
            listed = ", ".join(f"{{{each}}}" for each in known)
            raise UsageError(
                f"--cmd: {{{name}}} is not a parameter of the sweep; it has {listed}",
                hint=f"{{{{{name}}}}} keeps the braces",
            )
        used.add(name)
        odd = next((each[name] for each in made if name != NUMBER and shlex.quote(each[name]) != each[name]), None)
        if odd is not None and is_in_quotes(before):
            raise UsageError(
                f"--cmd: {{{name}}} is quoted automatically, as {odd!r:.60} needs; remove the quotes around it"
            )
    if unused := [name for name in made[0] if name not in used]:
        raise UsageError(
            f"--cmd does not use the parameter {unused[0]}",
            hint=f"Add it: --cmd 'train.py --{unused[0]} {{{unused[0]}}}'",
        )


def _written(command: str) -> Iterator[str]:
    """Yield the words of a command that seem to name what it writes."""
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        words = [*reader]
    except ValueError:
        return  # the shell will say what is wrong
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else ""
        if word in _REDIRECTS or (_OPTION.fullmatch(word) and not following.startswith("-")):
            yield following
        elif word == "tee":
            yield from itertools.takewhile(_is_name, itertools.dropwhile(_is_flag, words[index + 1 :]))
        elif equals and _OPTION.fullmatch(option):
            yield value


def _is_flag(word: str) -> bool:
    return word.startswith("-")


def _is_name(word: str) -> bool:
    return word[0] not in "();<>|&" if word else False
