"""Build the site of the documents into ``site/``: ``make docs`` runs ``.venv/bin/python tools/site.py``.

The documents are written for GitHub, and in three places: README.md, docs/, and beside the code. Here they are put
into one folder, with links and lists as Zensical wants them; Zensical builds the pages; llms.txt is written; and every
link and anchor of the built pages is checked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "zensical.toml"
PROJECT = tomllib.loads(SETTINGS.read_text())["project"]
# Zensical gets a folder of its own: it keeps a .cache beside its settings, and ours has other things.
BUILD, SITE = ROOT / ".cache" / "site", ROOT / "site"
SOURCES = BUILD / "docs"
SAMPLE, EXAMPLE = ROOT / "sample", ROOT / ".remote.example"
TUTORIAL = "The first hour"
# The pages that are no file of docs/, and their words in llms.txt.
MADE = {
    "index.md": PROJECT["site_description"],
    "tutorial.md": "from an empty project to a model that was trained on two servers.",
    "sample.md": "the files that the examples use.",
    "example.md": "a configuration with every key.",
    "license.md": "MIT.",
}
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "LICENSE": "license.md",
    "sample": "sample.md",
    ".remote.example": "example.md",
}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".txt": "text"}


def main() -> int:
    """Build the site, and say what is wrong with it."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    gather()
    shutil.copy(SETTINGS, BUILD)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--strict"], cwd=BUILD, check=False)
    if built.returncode:
        return built.returncode
    shutil.move(BUILD / "site", SITE)
    for page in SOURCES.rglob("*.md"):
        shutil.copy(page, SITE / page.relative_to(SOURCES))
    (SITE / "llms.txt").write_text(llms())
    problems = list(check(SITE))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(problems)} problems in {len(list(SITE.rglob('*.html')))} pages of {SITE.relative_to(ROOT)}/")
    return 1 if problems else 0


def gather() -> None:
    """Put all pages and pictures into one folder."""
    for source in sorted((ROOT / "docs").rglob("*")):
        if source.suffix in {".md", ".svg", ".json"}:
            put(place_of(source), source.read_text(), source)
    for name in ("CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        put(PLACES[name], (ROOT / name).read_text(), ROOT / name)
    readme = ROOT / "README.md"
    before, tutorial, after = tutorial_of(readme.read_text())
    put("tutorial.md", tutorial, readme)
    put(
        "index.md",
        f"{before}\n[{TUTORIAL}](tutorial.md) leads from an empty project to a trained model.\n\n{after}",
        readme,
    )
    put("sample.md", listing("The sample", "The files that the examples of the guide use.", SAMPLE))
    put("example.md", listing("Every key", "A configuration that shows every key.", EXAMPLE))
    put("license.md", f"# License\n\n{(ROOT / 'LICENSE').read_text()}")
    shutil.copy(Path(__file__).with_name("site.css"), SOURCES / "site.css")


def put(name: str, text: str, source: Path | None = None) -> None:
    """Write a page or a picture; the links of a page lead from the file that it was."""
    target = SOURCES / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".md":
        text = outside_of_blocks(text, lambda part: as_zensical_reads(relinked(part, name, source)))
    target.write_text(text)


def place_of(path: Path) -> str:
    """Return where a file of the repository is in the site, with its anchor if it is a part of a page."""
    name = path.relative_to(ROOT).as_posix()
    folder, _, inside = name.partition("/")
    if folder in PLACES:
        return PLACES[folder] + (f"#{anchor_of(inside)}" if inside else "")
    return name.removeprefix("docs/")


def relinked(text: str, name: str, source: Path | None) -> str:
    """Return a page with links that lead through the site."""

    def lead(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        if source is None or not path or path == "tutorial.md":
            return match[0]
        target = place_of(Path(os.path.normpath(source.parent / path))) + mark + anchor
        return match[1] + os.path.relpath(target, Path(name).parent) + match[3]

    return LINK.sub(lead, text)


def outside_of_blocks(text: str, change: Callable[[str], str]) -> str:
    """Return the text with its parts between code blocks changed."""
    parts, end = [], 0
    for block in FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def as_zensical_reads(text: str) -> str:
    """Return Markdown of GitHub without comments, and with its lists set apart and indented by fours."""
    lines: list[str] = []
    begun_by = "\n"
    for line in re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE | re.DOTALL).splitlines(keepends=True):
        # A list that follows a paragraph, or an item that follows a further paragraph of the item before it.
        if re.match(r"- |1\. ", line) and not re.match(r"- |\d+\. |\n", begun_by):
            lines.append("\n")
            begun_by = "\n"
        begun_by = line if begun_by == "\n" else begun_by if line.strip() else "\n"
        indent = len(line) - len(line.lstrip(" "))
        lines.append(" " * (4 * (indent // 2)) + line.lstrip(" "))
    # In a table, code is not split at its bars, and shows the backslashes before them.
    return re.sub(r"^\|.*$", lambda row: re.sub(r"`[^`]+`", _plain_bars, row[0]), "".join(lines), flags=re.MULTILINE)


def _plain_bars(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def tutorial_of(readme: str) -> tuple[str, str, str]:
    """Return what is before the tutorial, the tutorial as a page of its own, and what is after it."""
    before, rest = readme.split(f"## {TUTORIAL}\n")
    end = re.search(r"^## ", rest, re.MULTILINE)
    assert end is not None
    return before, outside_of_blocks(f"# {TUTORIAL}\n{rest[: end.start()]}", raised), rest[end.start() :]


def raised(text: str) -> str:
    """Return the text with its headings one level up."""
    return re.sub(r"^##(#+ )", r"#\1", text, flags=re.MULTILINE)


def listing(title: str, words: str, folder: Path) -> str:
    """Return a page with the files of a folder."""
    files = sorted(each for each in folder.iterdir() if each.suffix in LANGUAGES)
    parts = [f"## {each.name}\n\n```{LANGUAGES[each.suffix]}\n{each.read_text().rstrip()}\n```\n" for each in files]
    return "\n".join([f"# {title}\n\n{words}\n", *parts])


def anchor_of(heading: str) -> str:
    """Return the name that a heading gets on GitHub and here."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def llms() -> str:
    """Return the list of pages for programs that read Markdown: titles by group, and a line about each."""
    words = MADE | described("docs/guide.md") | described("README.md")
    parts = [f"# {PROJECT['site_name']}\n\n> {PROJECT['site_description']}\n\n"]
    group = ""
    for groups, page in pages_of(PROJECT["nav"]):
        if groups != group:
            group = groups
            parts.append(f"\n## {group}\n\n")
        title = (SOURCES / page).read_text().partition("\n")[0].removeprefix("# ")
        parts.append(f"- [{title}]({page}): {words[page]}\n")
    return "".join(parts)


def pages_of(nav: list[object], group: str = "") -> Iterator[tuple[str, str]]:
    """Yield each page of the navigation with its group."""
    for each in nav:
        if isinstance(each, str):
            yield group, each
        elif isinstance(each, dict):
            for name, inner in each.items():
                yield from pages_of(inner, f"{group}: {name}" if group else name)


def described(name: str) -> dict[str, str]:
    """Return what a list of links in a document says of each page."""
    source = ROOT / name
    text = re.sub(r"\n  +", " ", source.read_text())
    return {
        place_of(source.parent / path): LINK.sub("", words).replace("[", "").replace("]", "")
        for path, words in re.findall(r"^- \[[^\]]+\]\(([^)#]+)\): (.*)$", text, re.MULTILINE)
    }


class Page(HTMLParser):
    """What a built page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the references and the anchor of one element."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in {"href", "src"} and value:
                (self.links if tag == "a" else self.parts).append(value)


def check(site: Path) -> Iterator[str]:
    """Yield every reference that leads nowhere, and every part of a page that another host would have to send."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        yield from (f"{where}: is loaded from another host: {each}" for each in page.parts if urlsplit(each).netloc)
        for link in dict.fromkeys(page.links + page.parts):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            # Of the page for errors, which is shown at any address.
            start = f"{site}/" if parts.path.startswith("/") else f"{path.parent}/"
            target = Path(os.path.normpath(start + unquote(parts.path))) if parts.path else path
            if not target.is_file():
                yield f"{where}: leads nowhere: {link}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: has no such anchor: {link}"
    for link in LINK.findall((site / "llms.txt").read_text()):
        if not (site / link[1]).is_file():
            yield f"llms.txt: leads nowhere: {link[1]}"


if __name__ == "__main__":
    sys.exit(main())
