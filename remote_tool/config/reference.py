"""Writes the tables of keys in docs/configuration.md: ``python -m remote_tool.config.reference``.

The page has the order of the rows, and the declarations of the keys have the text. A key without a row gets one, at the
end of the first table of its class.
"""

from __future__ import annotations

import re
from pathlib import Path

from remote_tool.config.environment import Environment
from remote_tool.config.keys import keys_of
from remote_tool.config.model import Config
from remote_tool.config.servers import Server

FILE = Path(__file__).parents[2] / "docs" / "configuration.md"
KINDS = {kind.__name__: kind for kind in (Config, Server, Environment)}
_HEAD = "| key | default | description |\n|---|---|---|\n"
_TABLE = re.compile(
    r"(<!-- begin: keys of (\w+) \(make reference writes this\) -->\n)(.*?)(?=<!-- end: keys -->)", re.DOTALL
)
_ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def descriptions() -> dict[str, list[tuple[str, str, str]]]:
    """Return the keys with default and description, both as Markdown, by the name of their class."""
    return {
        name: [(key, each.default, each.help) for key, each in keys_of(kind).items()] for name, kind in KINDS.items()
    }


def with_keys(page: str) -> str:
    """Return the page with the rows of all keys."""
    missing = {name: dict(keys_of(kind)) for name, kind in KINDS.items()}
    for _, kind, rows in _TABLE.findall(page):
        for name in _ROW.findall(rows):
            missing[kind].pop(name, None)

    def written(table: re.Match[str]) -> str:
        begin, kind, rows = table.groups()
        keys = keys_of(KINDS[kind])
        names = [*(name for name in _ROW.findall(rows) if name in keys), *missing.pop(kind, ())]
        return begin + _HEAD + "".join(keys[name].row(name) for name in names)

    return _TABLE.sub(written, page)


if __name__ == "__main__":
    FILE.write_text(with_keys(FILE.read_text(encoding="utf-8")), encoding="utf-8")
