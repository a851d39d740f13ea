"""Writes share/, the man pages and the completions of shells, from ``--help``: ``python -m remote_tool.cli.manual``."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from remote_tool.cli.program import COMMANDS, PROGRAM, load_command, make_program
from remote_tool.cli.reference import INTRODUCTION
from remote_tool.config.reference import descriptions

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "share"
SHELLS = {
    "bash": f"bash-completion/completions/{PROGRAM}",
    "zsh": f"zsh/site-functions/_{PROGRAM}",
    "fish": f"fish/vendor_completions.d/{PROGRAM}.fish",
}
# At the first Tab, zsh runs the file as the function that completes, and Typer's script only defines another function.
FIRST_TAB = '[[ $zsh_eval_context[-1] != loadautofunc ]] || _remote_tool_completion "$@"'
CONFIGS = f"{PROGRAM}-configs"
SECTIONS = {
    "Config": "The project",
    "Server": "A server",
    "Environment": "environment, if it is miniconda or miniforge",
}
FILES = [
    (".remote/configs.yaml", "Servers and settings of the project."),
    (".remote/exclude.txt", "Files that are not sent: one rsync pattern per line."),
    (".remote/jobs/", "Records, logs, and artifacts of jobs."),
    (".remote/logs/", "Logs of prepare and of other steps."),
]


class _Roff:
    """Takes what a command writes as its help, and writes it as a man page."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_usage(self, program: str, arguments: str) -> None:
        """Write the synopsis, and begin the description."""
        self.lines += [".SH SYNOPSIS", rf"\fB{_escaped(program)}\fR {_escaped(arguments)}", ".SH DESCRIPTION"]

    def write_paragraph(self) -> None:
        """Leave it to write_text: a heading needs no line before it."""

    @contextmanager
    def indentation(self) -> Iterator[None]:
        """Leave it to man."""
        yield

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write a heading."""
        self.lines.append(f".SH {_escaped(name.upper())}")
        yield

    def write_text(self, text: str) -> None:
        """Write paragraphs; a heading begins the first one of its section."""
        for paragraph in text.split("\n\n"):
            self.lines += [] if self.lines[-1].startswith(".SH") else [".PP"]
            self.lines.append(_escaped(" ".join(paragraph.split())))

    def write_dl(self, rows: list[tuple[str, str]]) -> None:
        """Write options or commands, each with its description."""
        for name, description in rows:
            self.lines += [".TP", rf"\fB{_escaped(name.strip())}\fR", _escaped(" ".join(description.split()))]


def share() -> dict[str, str]:
    """Return the text of each file, by its place in share/."""
    pages: dict[str, tuple[Any, str]] = {
        PROGRAM: (make_program(), "prepare machines that you reach by SSH, and train PyTorch on them")
    }
    pages |= {f"{PROGRAM} {name}": (load_command(name), COMMANDS[name][1]) for name in COMMANDS}
    files = {f"man/man1/{title.replace(' ', '-')}.1": _page(title, *page) for title, page in pages.items()}
    files[f"man/man5/{CONFIGS}.5"] = _page_of_keys()
    variable = f"_{PROGRAM}_COMPLETE".replace("-", "_").upper()
    for shell, place in SHELLS.items():
        script = get_completion_script(prog_name=PROGRAM, complete_var=variable, shell=shell)
        files[place] = f"{script}\n{FIRST_TAB}\n" if shell == "zsh" else f"{script}\n"
    return files


def _page(title: str, command: Any, summary: str) -> str:  # noqa: ANN401 - Typer's own type is private
    roff = _Roff()
    context = typer.Context(command, info_name=title, **command.context_settings)
    command.format_help(context, roff)
    name = title.replace(" ", "-")
    head = [
        f'.TH {name.upper()} 1 "" {PROGRAM}',
        ".SH NAME",
        rf"{_escaped(name)} \- {_escaped(summary.removesuffix('.'))}",
    ]
    others = [(PROGRAM, 1)]
    if title == PROGRAM:
        with roff.section("Exit status"):
            roff.write_dl(re.findall(r"^\| (\d+) \| (.+) \|$", INTRODUCTION, re.MULTILINE))
        with roff.section("Files"):
            roff.write_dl(FILES)
        others = [(f"{PROGRAM}-COMMAND", 1), (CONFIGS, 5)]
    see = ", ".join(rf"\fB{_escaped(other)}\fR({section})" for other, section in others)
    return "\n".join([*head, *roff.lines, ".SH SEE ALSO", see, ""])


def _page_of_keys() -> str:
    """Return the page about configs.yaml, from the declarations of its keys."""
    roff = _Roff()
    roff.lines += [
        f'.TH {CONFIGS.upper()} 5 "" {PROGRAM}',
        ".SH NAME",
        rf"{_escaped(CONFIGS)} \- {_escaped('keys of .remote/configs.yaml')}",
        ".SH DESCRIPTION",
        _escaped("Each key with its default. A server needs only a hostname."),
    ]
    for name, keys in descriptions().items():
        with roff.section(SECTIONS[name]):
            defaults = {key: f" (default: {_plain(default)})" if default else "" for key, default, _ in keys}
            roff.write_dl([(f"{key}{defaults[key]}", _plain(text)) for key, _, text in keys])
    return "\n".join([*roff.lines, ".SH SEE ALSO", rf"\fB{_escaped(PROGRAM)}\fR(1)", ""])


def _plain(markdown: str) -> str:
    """Return a text without the marks of Markdown."""
    text = re.sub(r"\[below\]\(#[^)]*\)", "docs/configuration.md", markdown)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace(r"\|", "|")


def _escaped(text: str) -> str:
    # A terminal without UTF-8 shows nothing in place of an ellipsis.
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...")
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    for place, text in share().items():
        file = FOLDER / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
