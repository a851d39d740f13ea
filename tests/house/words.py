"""Plain English: phrases that read as if translated, and what the docs of uv, ripgrep or gh would say instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tests.house.texts import Text, engineers_texts, user_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

COUNTED = (
    "all|any|both|each|either|every|few|half|hundreds|list|many|more|most|much|neither|none|number|one|only|other"
    "|rest|several|some|thousands|three|two|which"
)
VERB = "are|began|came|can|cannot|comes|could|fails|failed|goes|had|has|is|ran|runs|stays|was|were"
JOINING = "and|but|by|from|in|of|only|than|to|with"
BRITISH = (
    "analys(?:e|ing)|artefact|behaviour|cancelled|cancelling|catalogue|centre|colour|defence|favour|grey|honour|labelled"
    "|licence|neighbour|organis(?:e|ing)|programme|recognis(?:e|ing)|summaris(?:e|ing)|travell|whilst"
)

# Each matches whole words, in any case, and across lines.
INSTEAD = {
    r"anew": "again, from scratch",
    r"told": "given, shown, reported; notified",
    r"(?:is|are|was|were) said": "is reported, a message says",
    r"lies?": "is",
    r"belongs? into": "belongs in",
    r"(?:go|goes|went|gone|going) on(?! (?:the|a|an|each|every|one|your) )": "continue, resume",
    r"by itself alone": "alone",
    r"cannot be meant": "is invalid",
    r"(?:is|are) meant": "is selected, is intended",
    r"(?<!there )(?:is|are|was|were|be) no(?! (?:better|different|fewer|less|longer|more|worse) )": "is not a, has no",
    r"(?:is|are) not there": "does not exist, is missing",
    r"look(?:s|ed|ing)? whether": "check whether",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?<![\"'])wish(?:ed|es)?(?![\"'])": "requested; want",
    r"every two": "each pair of",
    r"give up then": "give up after …",
    r"and leave(?=[.;,)])": "and exit",
    r"by key from now on": "key-based login",
    r"port to meet": "port for the rendezvous",
    r"has its \w+ twice": "… given twice",
    r"named and stays?": "skipped and listed",
    rf"(?!(?:{COUNTED}) )[a-z]+ of them": "their; or leave it out",
    r"though it is done": "even if up to date",
    r"how often": "how many times",
    r"so many (?:of|seconds|bytes|here|there)": "a number of, N",
    r"GPUs that it sees": "GPUs to expose",
    r"(?:every|no)thing of remote-tool": "all files of remote-tool; no daemon",
    # But the old option, and keys of JSON and of records.
    r"(?<![-\"'])strays?(?![\"'])": "orphan",
    rf"(?:(?<=[.:;*|] )|^)what (?:{VERB})(?=[^?]*?(?:[.;|]|$))": "a noun: files, servers, jobs that …",
    rf"(?:{JOINING}) what (?:{VERB})": "a noun: the files that …, the output of …",
    rf"(?:{BRITISH})(?:s|d|r|ed|ing|able|ful|ly)?": "American spelling",
}
PHRASES = {re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE): instead for phrase, instead in INSTEAD.items()}
ESCAPE = re.compile(r'words "([^"]+)": \w+')


class Finding(NamedTuple):
    """A phrase that nobody would write, and where."""

    path: Path
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.phrase}": {self.instead}'


def odd_phrases(root: Path) -> Iterator[Finding]:
    """Phrases that users read and nobody would write, unless a comment beside them says why.

    The comment is ``words "PHRASE": REASON``, in the lines of the text or in the line before.
    """
    return odd_in(root, user_texts(root))


def odd_comments(root: Path) -> Iterator[Finding]:
    """The same in docstrings and comments of the package."""
    return odd_in(root, engineers_texts(root))


def odd_in(root: Path, texts: Iterable[Text]) -> Iterator[Finding]:
    """The odd phrases of some texts."""
    for text in texts:
        for found in phrases_of(text):
            if found.phrase.lower() not in escaped(text.path, text.line, text.last_line):
                yield found._replace(path=text.path.relative_to(root))


def phrases_of(text: Text) -> Iterator[Finding]:
    """The odd phrases of one text."""
    on_one_line = " ".join(text.text.split())
    for pattern, instead in PHRASES.items():
        for match in pattern.finditer(on_one_line):
            yield Finding(text.path, line_of(text, match[0]), match[0], instead)


def line_of(text: Text, phrase: str) -> int:
    """The first line of a text that has a phrase, or its beginning; the text begins where that cannot be known."""
    lines = lines_of(text.path)[text.line - 1 : text.last_line]
    following = [*lines[1:], ""]
    for number, (line, following_line) in enumerate(zip(lines, following, strict=True), text.line):
        if phrase in " ".join(f"{line} {following_line}".split()) and phrase not in following_line:
            return number
    return text.line


def escaped(path: Path, first: int, last: int) -> set[str]:
    """The phrases that a comment allows in some lines of a file."""
    lines = lines_of(path)[max(first - 2, 0) : last]
    return {phrase.lower() for line in lines for phrase in ESCAPE.findall(line)}


def lines_of(path: Path) -> list[str]:
    """The lines of a file."""
    return path.read_text().splitlines()
