"""Find the files that all combinations of a sweep write, as far as its command says."""

from __future__ import annotations

import itertools
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def shared_outputs(command: str, artifacts: Sequence[str]) -> tuple[str, ...]:
    """Return the files and folders that every combination writes under the same name.

    Args:
        command: Of the sweep, with placeholders.
        artifacts: The patterns of the files to fetch; one without a wildcard names a file.
    """
    found = [*_written(command), *artifacts]
    names = (name.removeprefix("./") for name in found if name and not _VARIES.search(name))
    return tuple(dict.fromkeys(name for name in names if not name.startswith(_DEVICES)))


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
