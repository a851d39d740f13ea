"""The placeholders of a fan-out, in its command and its globs: ``{shard}``, ``{count}``, ``{item}`` and others."""

from __future__ import annotations

import shlex
from string import Formatter
from typing import TYPE_CHECKING

from remote_tool.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OF_ALL, OF_TOTAL, OF_ITEMS = ("shard", "shards"), ("count", "start", "stop"), ("item", "item:raw")


def placeholders(*, counted: bool) -> tuple[str, ...]:
    """Return the allowed placeholders, except for items."""
    return (*OF_ALL, *(OF_TOTAL if counted else ()))


def check_template(option: str, template: str, known: Sequence[str]) -> None:
    """Refuse a command or a glob with unknown braces.

    Raises:
        UsageError: A placeholder is unknown, or an item is in quotes; the message lists the known ones.
    """
    before = ""
    for text, name, form, conversion in _parse(option, template):
        before += text
        if name is None:
            continue
        written = _written(name, form, conversion)
        if written[1:-1] not in known:
            raise _unknown_placeholder(option, written, known)
        if written[1:-1] in OF_ITEMS and is_in_quotes(before):
            raise UsageError(f"{option}: {written} is quoted automatically; remove the quotes around it")
        before += "_"


def fill(template: str, values: Mapping[str, str]) -> str:
    parsed = Formatter().parse(template)
    return "".join(
        text + ("" if name is None else values[_written(name, form, "")[1:-1]]) for text, name, form, _ in parsed
    )


def names_in(template: str) -> list[str]:
    """Return the placeholders of a template, as written between the braces."""
    return [_written(name, form, "")[1:-1] for _, name, form, _ in Formatter().parse(template) if name is not None]


def check_words(command: str, items: Sequence[str]) -> None:
    """Refuse items that ``{item:raw}`` in the command cannot split into words.

    Raises:
        UsageError: One has an open quote, or ends in a backslash.
    """
    for number, item in enumerate(items if "item:raw" in names_in(command) else (), 1):
        try:
            shlex.split(item)
        except ValueError as error:
            reason = str(error).lower()
            raise UsageError(
                f"--items: {{item:raw}} cannot split item {number} into words: {item!r:.200}: {reason}",
                hint="quote it as for a shell, or pass each line as one word with {item}",
            ) from None


def _parse(option: str, template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(template))
    except ValueError:
        raise UsageError(
            f"{option} {template!r} has an unmatched brace",
            hint="write {{ and }} for literal braces",
        ) from None


def _written(name: str, form: str | None, conversion: str | None) -> str:
    return f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}"


def _unknown_placeholder(option: str, written: str, known: Sequence[str]) -> UsageError:
    hint = f"{{{written}}} is a literal pair of braces"
    needed = {f"{{{name}}}": "--total" for name in OF_TOTAL}
    if option == "--cmd":
        needed |= {f"{{{name}}}": "--items" for name in OF_ITEMS}
    if written in needed and written[1:-1] not in known:
        return UsageError(f"{option}: {written} needs {needed[written]}", hint=hint)
    listed = ", ".join(f"{{{each}}}" for each in known)
    return UsageError(f"{option}: {written} is not a placeholder; use {listed}", hint=hint)


def is_in_quotes(before: str) -> bool:
    try:
        shlex.split(before)
    except ValueError:
        return not before.endswith("\\")
    return False
