"""Record the terminal of README.md: ``.venv/bin/python tools/record_terminal.py`` writes ``docs/terminal.svg``.

Starts two throwaway SSH servers on this machine, as ``remote-tool demo`` does, types real commands into a terminal, and
draws what they print. Commands that only set the scene are not drawn, and a long output is shortened with a line ``…``.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from html import escape
from pathlib import Path
from typing import NamedTuple

from remote_tool.workflows.demo.server import DemoServer, running_servers

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "terminal.svg"
ROWS, COLUMNS = 40, 96
# Lines of an output that stay above and below the line "…".
SHOWN_FIRST, SHOWN_LAST = 6, 5
COMMANDS = (
    "remote-tool prepare",
    "remote-tool helper-torch-launch --cmd train_digits.py --nproc-per-node 2 --follow",
    "remote-tool job-list --stopped",
    "remote-tool job-pull 1 --artifact 'checkpoints/*.pt'",
)
SETTINGS = """\
environment: {{existing: '{prefix}'}}
env: {{OMP_NUM_THREADS: 1}}
"""

CHARACTER, LINE, MARGIN, BAR = 8.4, 20, 18, 36
LABEL = "A terminal: prepare two servers, train on both, list the jobs, get the checkpoint"
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
COLORS = {31: "#ff7b72", 32: "#56d364", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#56d4dd"}
BACKGROUND, FOREGROUND, DIM, BORDER = "#0d1117", "#d1d7e0", "#8b949e", "#3d444d"
BOLD_CODE, DIM_CODE = 1, 2

# What the program draws at the bottom and takes away again: it is not part of what stays on the terminal.
_BOTTOM_LINE = re.compile(r"\x1b7.*?\x1b8", re.DOTALL)
_CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[A-Z]|([\r\n])|([^\x1b\r\n])")


class Cell(NamedTuple):
    """A character and how it is drawn."""

    text: str
    style: str


Line = list[Cell]


def main() -> None:
    """Run the commands and write the picture."""
    with tempfile.TemporaryDirectory(prefix="remote-tool-recording-") as name:
        folder = Path(name)
        with running_servers(folder, folder / "key", 2) as servers:
            lines = record(folder, servers)
    PICTURE.write_text(draw(lines))
    print(f"wrote {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size} bytes")


def record(folder: Path, servers: list[DemoServer]) -> list[Line]:
    """Return the lines of the terminal."""
    project = folder / "digits"
    shutil.copytree(ROOT / "sample", project, ignore=shutil.ignore_patterns("__pycache__", "checkpoints", ".remote"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "REMOTE_TOOL_"))}
    environment |= {"HOME": str(folder), "TERM": "xterm-256color", "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    names = [f"--server gpu{number}=ubuntu@127.0.0.1:{server.port}" for number, server in enumerate(servers, 1)]
    run(f"remote-tool init --name digits {' '.join(names)} --private-key {folder / 'key'}", project, environment)
    with (project / ".remote" / "configs.yaml").open("a") as file:
        file.write(SETTINGS.format(prefix=sys.prefix))
    run("remote-tool keys --accept-new-keys", project, environment)
    lines: list[Line] = []
    for command in COMMANDS:
        prompt = [Cell("$", "dim"), *(Cell(character, "bold") for character in f" {command}")]
        lines += [[], prompt, *shortened(screen(run(command, project, environment)))]
    return lines[1:]


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Return what a command writes to its terminal."""
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = b""
    with subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        start_new_session=True,
    ) as program:
        os.close(other_end)
        while chunk := read(terminal):
            written += chunk
    os.close(terminal)
    if program.returncode:
        raise SystemExit(f"{command}: exit status {program.returncode}\n{written.decode()}")
    return written.decode()


def read(terminal: int) -> bytes:
    """Return the next bytes; none at the end, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def screen(written: str) -> list[Line]:
    """Return the lines that stay on the terminal after the output ``written``."""
    lines: list[Line] = [[]]
    row = column = 0
    codes: set[int] = set()
    for numbers, control, move, character in _CONTROL.findall(_BOTTOM_LINE.sub("", written)):
        if character:
            lines[row][column:] = [Cell(character, style_of(codes)), *lines[row][column + 1 :]]
            column += 1
        elif move == "\n":
            row += 1
            lines += [[]] * (row == len(lines))
        elif move == "\r":
            column = 0
        elif control == "A":
            row -= int(numbers or 1)
        elif control == "K":
            lines[row] = []
        elif control == "m":
            codes = set() if numbers in {"", "0"} else codes | {int(number) for number in numbers.split(";")}
    return [line for line in lines if line]


def style_of(codes: set[int]) -> str:
    """Return the classes of what is written with these codes."""
    names = ["bold"] * (BOLD_CODE in codes) + ["dim"] * (DIM_CODE in codes)
    return " ".join(names + [f"c{code}" for code in sorted(codes) if code in COLORS])


def shortened(lines: list[Line]) -> list[Line]:
    """Leave out the middle of a long output."""
    if len(lines) <= SHOWN_FIRST + SHOWN_LAST + 1:
        return lines
    return [*lines[:SHOWN_FIRST], [Cell("…", "dim")], *lines[-SHOWN_LAST:]]


def draw(lines: list[Line]) -> str:
    """Return the picture: a dark window, which reads the same on a light and on a dark page."""
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = len(lines) * LINE + BAR + MARGIN
    style = [f"text{{font:14px {FONT};fill:{FOREGROUND};white-space:pre}}.bold{{font-weight:bold}}.dim{{fill:{DIM}}}"]
    style += [f".c{code}{{fill:{color}}}" for code, color in COLORS.items()]
    dots = [f'<circle cx="{MARGIN + 4 + 20 * number}" cy="18" r="5" fill="{BORDER}"/>' for number in range(3)]
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
        f"<title>{LABEL}</title>",
        f"<style>{''.join(style)}</style>",
        f'<rect {size} rx="8" fill="{BORDER}"/>',
        f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="7" fill="{BACKGROUND}"/>',
        *dots,
    ]
    for number, line in enumerate(lines):
        parts += [text_of(start, run, BAR + number * LINE + 14) for start, run in runs(line)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def runs(line: Line) -> list[tuple[int, Line]]:
    """Divide a line where its style changes; return each part with its first column."""
    found: list[tuple[int, Line]] = []
    for column, cell in enumerate(line):
        if found and found[-1][1][-1].style == cell.style:
            found[-1][1].append(cell)
        else:
            found.append((column, [cell]))
    return found


def text_of(column: int, cells: Line, baseline: int) -> str:
    """Return a run as SVG; its length is given, so that columns line up in every font."""
    text = "".join(cell.text for cell in cells)
    if not text.strip():
        return ""
    column += len(text) - len(text.lstrip())
    text = text.strip()
    style = f' class="{cells[0].style}"' if cells[0].style else ""
    place = f'x="{MARGIN + column * CHARACTER:.1f}" y="{baseline}" textLength="{len(text) * CHARACTER:.1f}"'
    return f'<text {place}{style} xml:space="preserve">{escape(text, quote=False)}</text>'


if __name__ == "__main__":
    main()
