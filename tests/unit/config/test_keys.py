"""A key is declared once: from its declaration follow its reader, its messages, and its row of the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from remote_tool.config import forms, loading, reference
from remote_tool.config.keys import key, keys_of
from remote_tool.config.loading import parse
from remote_tool.config.model import Config
from remote_tool.config.readers import text
from remote_tool.config.servers import Server
from remote_tool.errors import ConfigError

ROOT = Path("/home/me/digits")
FILE = ROOT / ".remote" / "configs.yaml"
PAGE = reference.FILE.read_text(encoding="utf-8")
ROW = "| `coffee` | none | Cups of coffee for each job. |\n"


@dataclass(frozen=True, kw_only=True)
class ConfigWithOneMore(Config):
    """The configuration with a declaration more."""

    coffee: int = field(default=0, metadata=key(text(forms.RETRIES, int), "none", "Cups of coffee for each job."))


@pytest.fixture(autouse=True)
def with_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "Config", ConfigWithOneMore)
    monkeypatch.setitem(reference.KINDS, "Config", ConfigWithOneMore)


def problems(content: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(content.encode(), FILE, ROOT)
    return [each.removeprefix(".remote/configs.yaml:") for each in caught.value.problems]


def test_a_declared_key_is_read() -> None:
    assert vars(parse(b"coffee: 3", FILE, ROOT))["coffee"] == 3
    assert vars(parse(b"coffee:", FILE, ROOT))["coffee"] == 0


def test_a_declared_key_has_its_messages() -> None:
    assert problems("name: x\ncoffee: tea") == [f"2: coffee: must be {forms.RETRIES.expected}, found 'tea'"]
    assert problems("cofee: 3") == ["1: cofee: unknown key; did you mean coffee?"]
    assert problems("x: 3") == [f"1: x: unknown key; expected one of {', '.join(keys_of(Config))}, coffee"]


def test_a_declared_key_gets_a_row_at_the_end_of_its_first_table() -> None:
    page = reference.with_keys(PAGE)
    assert page.replace(ROW, "") == PAGE
    assert ROW + "<!-- end: keys -->" in page[: page.index("## Servers")]
    assert reference.with_keys(page) == page


def test_a_row_stays_where_it_is_on_the_page() -> None:
    moved = PAGE.replace("| `python` |", "| `coffee` | | |\n| `python` |")
    assert reference.with_keys(moved) == PAGE.replace("| `python` |", ROW + "| `python` |")


def test_a_key_that_is_no_longer_declared_loses_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    page = reference.with_keys(PAGE)
    monkeypatch.setitem(reference.KINDS, "Config", Config)
    assert reference.with_keys(page) == PAGE


def test_keys_of_paths_are_declared_beside_the_fields_that_they_fill() -> None:
    fills = [declared.fills for declared in keys_of(Config).values() if declared.fills]
    config = parse(b"jobs_folder: a\nlogs_folder: b\nexclude_file: c", FILE, ROOT)
    assert {each.partition(".")[0] for each in fills} == {"local", "remote"}
    assert (config.local.jobs_folder, config.local.logs_folder, config.local.exclude) == ("a", "b", "c")
    assert not [declared.fills for declared in keys_of(Server).values() if declared.fills]
