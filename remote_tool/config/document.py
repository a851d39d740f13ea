"""Parse configs.yaml into nodes: bounded in size, without tags, each value with its key and line."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from remote_tool.config.forms import Validator

LARGEST_FILE = 1024 * 1024
# Aliases can expand a small file into a huge one; thousands of servers stay below this.
MOST_NODES = 20_000
# libyaml's composer is recursive, and crashes when the stack is full.
DEEPEST = 32
_TOO_DEEP = f"nested deeper than {DEEPEST}"
MOST_PROBLEMS = 50

_STANDARD = "tag:yaml.org,2002:"
_TAGS = {
    _STANDARD + kind for kind in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")
}
# All characters but these; the inverse class takes 3 ms to compile.
_NOT_YAML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_SECRET = re.compile(r"(pass\w*[^\w.]).+", re.IGNORECASE | re.DOTALL)
_PLAIN_KEY = re.compile(r"[\w.@+-]{1,80}…?")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Problems:
    """The problems of a file: each one once, in the order of the lines."""

    shown: str
    _found: dict[tuple[int, str], None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, text: str, *, line: int = 0, key: str = "") -> None:
        place = f"{self.shown}:{line}:" if line else f"{self.shown}:"
        self._found[line, f"{place} {key}: {text}" if key else f"{place} {text}"] = None

    @property
    def are_many(self) -> bool:
        return len(self._found) > MOST_PROBLEMS

    def sentences(self) -> list[str]:
        found = [sentence for _, sentence in sorted(self._found, key=lambda problem: problem[0])]
        rest = len(found) - MOST_PROBLEMS
        return [*found[:MOST_PROBLEMS], f"{self.shown}: and {rest} more problems"] if rest > 0 else found


_MAPPING = "a mapping (key: value)"


@dataclass(frozen=True)
class ConfigNode:
    """A value in the file.

    Attributes:
        node: The YAML node.
        key: Its dotted path; empty at the top.
        line: The line of its key.
        problems: Where its problems are added.
    """

    node: Node
    key: str
    line: int
    problems: Problems

    @property
    def is_blank(self) -> bool:
        """``key:`` and ``key: ''`` mean that it is not set."""
        return isinstance(self.node, ScalarNode) and (_is_null(self.node) or self.node.value == "")

    @property
    def is_null(self) -> bool:
        """``key:`` has no value, and ``key: ''`` has an empty one."""
        return _is_null(self.node)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, SequenceNode)

    def refuse(self, text: str) -> None:
        """Add a problem."""
        self.problems.add(text, line=self.line, key=self.key)

    def must_be(self, expected: str) -> None:
        """Add a problem that names the expected and the found value."""
        self.refuse(f"must be {expected}, found {_described(self.node)}")

    def text(self, form: Validator) -> str | None:
        """Return the text as written in the file: 3.10 stays 3.10, and a server may be called no."""
        if isinstance(self.node, ScalarNode) and not _is_null(self.node) and form.accepts(self.node.value):
            return str(self.node.value)
        if form.is_secret:
            self.refuse(f"must be {form.expected}")
        else:
            self.must_be(form.expected)
        return None

    def items(self, expected: str, *, are_secret: bool = False) -> list[ConfigNode]:
        """Return the values of a non-empty list."""
        if not isinstance(self.node, SequenceNode) or not self.node.value:
            if are_secret:
                self.refuse(f"must be {expected}")
            else:
                self.must_be(expected)
            return []
        return [
            ConfigNode(each, f"{self.key}[{index}]", _line_of(each), self.problems)
            for index, each in enumerate(self.node.value)
        ]

    def entries(self, allowed: Iterable[str], *, inner: Iterable[str] = (), owner: str = "") -> dict[str, ConfigNode]:
        """Return the values of a mapping by key, without blank ones; an unknown key is refused.

        Keys in ``inner`` belong to something else, the owner.
        """
        known = tuple(allowed)
        elsewhere = tuple(inner)
        values = {}
        for name, place in self.pairs():
            if name in elsewhere:
                place.refuse(f"belongs under {owner}, not at the top level")
            elif name not in known:
                place.refuse(_unknown(name, () if self.problems.are_many else known))
            elif not place.is_blank:
                values[name] = place
        return values

    def pairs(self, *, are_secret: bool = False) -> Iterator[tuple[str, ConfigNode]]:
        """Yield the pairs of a mapping, merged ones (``<<``) last; a key given twice is refused."""
        if not isinstance(self.node, MappingNode):
            if are_secret and not self.is_blank:
                self.refuse(f"must be {_MAPPING}")
            elif not self.is_blank:
                self.must_be(_MAPPING)
            return
        own: dict[str, ConfigNode] = {}
        merged: dict[str, ConfigNode] = {}
        for key, value in self.node.value:
            if key.tag == _STANDARD + "merge":
                merged = self._merged(value, are_secret=are_secret) | merged
            elif not isinstance(key, ScalarNode):
                self.problems.add("keys must be plain text", line=_line_of(key), key=self.key)
            elif key.value in own:
                self._inner(key, value).refuse(f"duplicate key, first set on line {own[key.value].line}")
            else:
                own[key.value] = self._inner(key, value)
        yield from (own | {name: place for name, place in merged.items() if name not in own}).items()

    def _inner(self, key: ScalarNode, value: Node) -> ConfigNode:
        name = _shown_key(key.value)
        return ConfigNode(value, f"{self.key}.{name}" if self.key else name, _line_of(key), self.problems)

    def _merged(self, value: Node, *, are_secret: bool) -> dict[str, ConfigNode]:
        """Return the keys merged by ``<<``; of several mappings the first wins."""
        merged: dict[str, ConfigNode] = {}
        for each in value.value if isinstance(value, SequenceNode) else [value]:
            inner = ConfigNode(each, self.key, _line_of(each), self.problems)
            merged = dict(inner.pairs(are_secret=are_secret)) | merged
        return merged


def read_document(text: bytes, problems: Problems) -> ConfigNode | None:
    """Return the top node of a file; None if it is invalid. An empty file is an empty mapping."""
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.add(
            f"not valid UTF-8 (byte {error.object[error.start]:#04x})", line=text.count(b"\n", 0, error.start) + 1
        )
        return None
    if bad := _NOT_YAML.search(decoded):
        line = decoded.count("\n", 0, bad.start()) + 1
        problems.add(f"the character U+{ord(bad[0]):04X} is not allowed in YAML", line=line)
        return None
    try:
        node = yaml.compose(decoded, Loader=_LOADER) if _is_bounded(decoded, problems) else None
    except yaml.YAMLError as error:
        _add_syntax_error(error, decoded, problems)
        return None
    if problems:
        return None
    top = ConfigNode(node or MappingNode(_STANDARD + "map", []), "", _line_of(node) if node else 1, problems)
    return top if _is_harmless(top) else None


def _is_bounded(text: str, problems: Problems) -> bool:
    """Check the events first: they need neither memory nor stack for nested values."""
    depth = count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        count += isinstance(event, (CollectionStartEvent, ScalarEvent, AliasEvent))
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEEPEST or count > MOST_NODES:
            limit = _TOO_DEEP if depth > DEEPEST else f"more than {MOST_NODES} values"
            problems.add(limit, line=event.start_mark.line + 1 if event.start_mark else 1)
            return False
    return True


def _is_harmless(top: ConfigNode) -> bool:
    """Follow aliases within a bound; refuse tags, which can name Python types."""
    count = 0
    waiting = [top.node]
    while waiting:
        node = waiting.pop()
        if node.tag not in _TAGS:
            top.problems.add("tags (!...) are not allowed; quote text that starts with !", line=_line_of(node))
        inner = _inner_nodes(node)
        count += len(inner)
        if count > MOST_NODES:
            top.problems.add(f"aliases expand to more than {MOST_NODES} values", line=_line_of(node))
            return False
        waiting += inner
    return True


def _inner_nodes(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [each for pair in node.value for each in pair]
    return node.value if isinstance(node, SequenceNode) else []


def _add_syntax_error(error: yaml.YAMLError, text: str, problems: Problems) -> None:
    problem = "not understood"
    mark: Any = None
    if isinstance(error, yaml.MarkedYAMLError):
        problem, mark = error.problem or problem, error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    if "".join(text.splitlines()[line : line + 1])[column:].startswith("\t"):
        problems.add("tabs are not allowed here; indent with spaces", line=line + 1)
    elif "alias" in problem:
        problems.add("undefined alias (*...); quote text that starts with *", line=line + 1)
    elif "nesting depth" in problem:
        # libyaml 0.2.6 and later have a limit of their own, which a single line can reach before its first event.
        problems.add(_TOO_DEEP, line=line + 1)
    else:
        # A quoted value may be part of a password that should have been quoted.
        problems.add("not valid YAML: " + re.sub(r"'[^']{2,}'", "it", problem), line=line + 1)


def _unknown(name: str, known: tuple[str, ...]) -> str:
    likely = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.6)
    if likely:
        return f"unknown key; did you mean {likely[0]}?"
    if re.search("proxy|jump|forward|command", name, re.IGNORECASE):
        return "unknown key; set it in ~/.ssh/config, which remote-tool reads"
    return f"unknown key; expected one of {', '.join(known)}" if known else "unknown key"


def _shown_key(name: str) -> str:
    shown = _SECRET.sub(r"\1…", name[:80])
    return shown if _PLAIN_KEY.fullmatch(shown) else repr(shown)


def _described(node: Node) -> str:
    if _is_null(node) or node.value == "":
        return "nothing"
    if isinstance(node, ScalarNode):
        return repr(_SECRET.sub(r"\1…", node.value[:80]))
    if isinstance(node, SequenceNode):
        return "a list" if node.value else "an empty list"
    return "a mapping"


def _is_null(node: Node) -> bool:
    return bool(node.tag == _STANDARD + "null")


def _line_of(node: Node) -> int:
    return int(node.start_mark.line) + 1
