"""Record the pictures of the documents: ``make pictures`` writes ``docs/terminal.svg`` and ``docs/screens/``.

Starts two throwaway SSH servers on this machine, as ``remote-tool demo`` does, types real commands into a terminal, and
draws what they print. Commands that only set the scene are not drawn, and a long output is shortened with a line ``…``.
After ``check``, the servers have stand-ins for GPUs, and only leases of their own.
"""

from __future__ import annotations

import fcntl
import os
import platform
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

from remote_tool.workflows.demo import server as demo
from remote_tool.workflows.demo.server import DemoServer, running_servers
from tests.stand_in_gpus import gpu_line, put_nvidia_smi, set_gpus

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ROOT / "docs"
ROWS, COLUMNS = 40, 96
# Lines of an output that stay above and below the line "…".
SHOWN_FIRST, SHOWN_LAST = 6, 5
PREPARE = "remote-tool prepare"
CHECK = "remote-tool check"
LAUNCH = "remote-tool helper-torch-launch --cmd train_digits.py --nproc-per-node 2 --follow"
STOPPED = "remote-tool job-list --stopped"
PULL = "remote-tool job-pull 1 --artifact 'checkpoints/*.pt'"
GPUS = "remote-tool gpus"
JOBS = "remote-tool job-list"
SLOW = "train_digits.py --fresh --epochs 100000 --learning-rate 0.00001"
SWEEP = "remote-tool helper-sweep --cmd 'fit.py {lr} {seed}'"
RESULTS = "remote-tool sweep-show --metric loss"
TOP = "remote-tool top"
# What is typed, in this order.
COMMANDS = (
    PREPARE,
    CHECK,
    LAUNCH,
    STOPPED,
    PULL,
    f"{SWEEP} --grid lr=0.1,0.03,0.01 --grid seed=1..2 --tag sweep",
    "remote-tool job-wait --tag sweep",
    RESULTS,
    f"remote-tool helper-torch-launch --cmd '{SLOW}' --gpus 2 --name digits",
    "remote-tool job-run --server gpu2 --gpus 1 --name evaluate --cmd 'sleep 1000'",
    "remote-tool job-run --server gpu2 --gpus 4 --name next --cmd 'sleep 1000'",
    "sleep 20",
    GPUS,
    JOBS,
    TOP,
)
END = "remote-tool job-kill --all --yes"
SETTINGS = """\
environment: {{existing: '{prefix}'}}
env: {{OMP_NUM_THREADS: 1}}
"""
# What the sweep tries; the same as in the guide.
FIT = "import sys; print('loss:', round(abs(float(sys.argv[1]) - 0.02) + int(sys.argv[2]) / 100, 3))\n"
NUMBER_OF_GPUS = 4
# How many of them work on each server, from these commands on.
USED = {PULL: (0, 0), GPUS: (2, 3)}
# Set for the tests: the folder of leases.
BASE_VARIABLE = "REMOTE_TOOL_TEST_LEASES"

CHARACTER, LINE, MARGIN, BAR = 8.4, 20, 18, 36
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


class Picture(NamedTuple):
    """Some of the commands in a window."""

    file: str
    label: str
    commands: tuple[str, ...]


PICTURES = (
    Picture(
        "terminal.svg",
        "A terminal: prepare two servers, train on both, list the jobs, get the checkpoint",
        (PREPARE, LAUNCH, STOPPED, PULL),
    ),
    Picture("screens/prepare.svg", "prepare: what was done on each server", (PREPARE,)),
    Picture("screens/check.svg", "check: what was found on each server", (CHECK,)),
    Picture("screens/launch.svg", "A launch that is followed: the output of both servers", (LAUNCH,)),
    Picture("screens/job-list.svg", "job-list: jobs that run, and one that waits for GPUs", (JOBS,)),
    Picture("screens/gpus.svg", "gpus: who has reserved which GPU, and who waits", (GPUS,)),
    Picture("screens/sweep-show.svg", "sweep-show: the combinations, the best first", (RESULTS,)),
)


def main() -> None:
    """Run the commands and write the pictures."""
    with tempfile.TemporaryDirectory(prefix="remote-tool-recording-") as name:
        folder = Path(name)
        # The servers have our variables.
        os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
        os.environ[BASE_VARIABLE] = str(folder)
        demo.PASSED_ON = (*demo.PASSED_ON, BASE_VARIABLE)
        with running_servers(folder, folder / "key", 2) as servers:
            printed = record(folder, servers)
    (DOCUMENTS / "screens").mkdir(exist_ok=True)
    for file, label, commands in PICTURES:
        write(DOCUMENTS / file, draw(label, typed(commands, printed)))
    write(DOCUMENTS / "screens" / "top.svg", printed[TOP])


def write(file: Path, text: str) -> None:
    """Write a picture."""
    file.write_text(text)
    print(f"wrote {file.relative_to(ROOT)}, {file.stat().st_size} bytes")


def put_gpus(folder: Path, *used: int) -> None:
    """Give the servers an nvidia-smi, which says for the home of each how many of its GPUs work."""
    programs = put_nvidia_smi(folder / "bin", otherwise='here="$here/${HOME##*/}"').parent
    for server, count in enumerate(used, 1):
        loads = [(97, 61440) if number < count else (0, 4) for number in range(NUMBER_OF_GPUS)]
        lines = [gpu_line(number, load=load, used=used) for number, (load, used) in enumerate(loads)]
        (programs / f"server{server}").mkdir(exist_ok=True)
        set_gpus(programs / f"server{server}", *(line.replace("GPU-", f"GPU-{server}e4d7c0") for line in lines))


def record(folder: Path, servers: list[DemoServer]) -> dict[str, str]:
    """Return what each command writes to its terminal; of top, the picture that it makes of itself."""
    project = folder / "digits"
    shutil.copytree(ROOT / "sample", project, ignore=shutil.ignore_patterns("__pycache__", "checkpoints", ".remote"))
    (project / "fit.py").write_text(FIT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SSH_", "REMOTE_TOOL_"))}
    environment |= {"HOME": str(folder), "TERM": "xterm-256color", "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    names = [f"--server gpu{number}=ubuntu@127.0.0.1:{server.port}" for number, server in enumerate(servers, 1)]
    run(f"remote-tool init --name digits {' '.join(names)} --private-key {folder / 'key'}", project, environment)
    with (project / ".remote" / "configs.yaml").open("a") as file:
        file.write(SETTINGS.format(prefix=sys.prefix))
    run("remote-tool keys --accept-new-keys", project, environment)
    printed = {}
    try:
        for command in COMMANDS:
            if command in USED:
                put_gpus(folder, *USED[command])
            take = photograph if command == TOP else run
            printed[command] = take(command, project, environment)
    finally:
        run(END, project, environment)
    return printed


def photograph(command: str, project: Path, environment: dict[str, str]) -> str:
    """Return the picture that a screen of Textual makes of itself, without fonts that a browser would fetch."""
    wanted = {"TEXTUAL_SCREENSHOT": "12", "TEXTUAL_SCREENSHOT_LOCATION": str(project.parent)}
    run(command, project, environment | wanted | {"TEXTUAL_SCREENSHOT_FILENAME": "top.svg"})
    return re.sub(r"\s*@font-face \{.*?\}|\s*<!--.*?-->", "", (project.parent / "top.svg").read_text(), flags=re.DOTALL)


def typed(commands: tuple[str, ...], printed: dict[str, str]) -> list[Line]:
    """Return the lines of a terminal in which these commands were typed."""
    lines: list[Line] = []
    for command in commands:
        prompt = [Cell("$", "dim"), *(Cell(character, "bold") for character in f" {command}")]
        lines += [[], prompt, *shortened(screen(printed[command]), len(commands))]
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
        lines = ("".join(cell.text for cell in line) for line in screen(written.decode()))
        raise SystemExit("\n".join([f"{command}: exit status {program.returncode}", *lines]))
    return re.sub(rf"(?<=[\s>\"m]){re.escape(platform.node())}(?=[\s<\"\x1b])", "node", written.decode())


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


def shortened(lines: list[Line], commands: int) -> list[Line]:
    """Leave out the middle of a long output, where the window has other commands as well."""
    if commands == 1 or len(lines) <= SHOWN_FIRST + SHOWN_LAST + 1:
        return lines
    return [*lines[:SHOWN_FIRST], [Cell("…", "dim")], *lines[-SHOWN_LAST:]]


def draw(label: str, lines: list[Line]) -> str:
    """Return a picture: a dark window, which reads the same on a light and on a dark page."""
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = len(lines) * LINE + BAR + MARGIN
    style = [f"text{{font:14px {FONT};fill:{FOREGROUND};white-space:pre}}.bold{{font-weight:bold}}.dim{{fill:{DIM}}}"]
    style += [f".c{code}{{fill:{color}}}" for code, color in COLORS.items()]
    dots = [f'<circle cx="{MARGIN + 4 + 20 * number}" cy="18" r="5" fill="{BORDER}"/>' for number in range(3)]
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
        f"<title>{label}</title>",
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
