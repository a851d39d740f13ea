"""The site of the documents: its order, and what is said when a link of it leads nowhere. ``make docs`` builds it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from tests.extended.test_documents import GUIDE, INDEX, REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tool() -> Any:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("site_tool", REPOSITORY / "tools" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_the_guide_in_the_order_of_its_index(tool: Any) -> None:
    groups: dict[str, list[Path]] = {}
    for group, page in tool.pages_of(tool.PROJECT["nav"]):
        if page.startswith("guide/"):
            groups.setdefault(group.removeprefix("Guide: "), []).append(INDEX.parent / page)
    assert [page for pages in groups.values() for page in pages] == GUIDE
    headings = [line.removeprefix("## ") for line in INDEX.read_text().splitlines() if line.startswith("## ")]
    assert list(groups) == headings


def test_every_page_of_the_site_is_in_its_navigation_and_has_a_description(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "SOURCES", tmp_path)
    tool.gather()
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.md")}
    assert pages == {page for _, page in tool.pages_of(tool.PROJECT["nav"])}
    listed = tool.llms()
    assert [page for page in sorted(pages) if f"]({page}): " not in listed] == []


def test_the_site_is_checked_for_links_anchors_and_other_hosts(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "llms.txt").write_text("- [A](a.md): a\n- [B](b.html): b\n")
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="/b.html">b</a><a href="https://c">c</a>')
    (tmp_path / "b.html").write_text(
        '<h1 id="here">b</h1><a href="gone.html">a</a><a href="a.html#gone">a</a><script src="https://c/d.js"></script>'
    )
    assert list(tool.check(tmp_path)) == [
        "b.html: is loaded from another host: https://c/d.js",
        "b.html: leads nowhere: gone.html",
        "b.html: has no such anchor: a.html#gone",
        "llms.txt: leads nowhere: a.md",
    ]


def test_markdown_of_github_is_made_into_what_zensical_reads(tool: Any) -> None:
    assert tool.as_zensical_reads("**New**\n- a\n  b\n  - c\n") == "**New**\n\n- a\n    b\n    - c\n"
    assert tool.as_zensical_reads("- a\n\n  b\n- c\n- d\n") == "- a\n\n    b\n\n- c\n- d\n"
    assert tool.as_zensical_reads("<!-- not run: x -->\n| `a \\| b` | c \\| d |\n") == "| `a | b` | c \\| d |\n"
