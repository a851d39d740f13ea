"""The documents are true: their examples run, in order, on two real servers; their links and options exist.

In a ``console`` block a line ``$ …`` is typed into a shell, and each line below it must be among what that prints.
``…`` stands for anything, spaces for any number of spaces, and seconds for other seconds. A command fails the test when
it fails, unless the next one asks for ``$?``. ``<!-- not run: why -->`` before a block leaves it out, and
``<!-- needs: PROGRAM -->`` where there is no such program. ``sleep 1; …`` sleeps until the command prints something.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

import pytest

from remote_tool import SweepRequest
from remote_tool.cli.program import COMMANDS, load_command
from remote_tool.config.loading import parse
from remote_tool.config.model import Config
from remote_tool.workflows.sweep.file import load_sweep_file

if TYPE_CHECKING:
    from tests.conftest import MakeServer

REPOSITORY = Path(__file__).parents[2]
SKILL = REPOSITORY / "docs" / "skill.md"
README = REPOSITORY / "README.md"
DOCUMENTS = [README, REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
INDEX = REPOSITORY / "docs" / "guide.md"
LINK_OF_INDEX = re.compile(r"^- \[(.+?)\]\((guide/[\w-]+\.md)\): ", re.MULTILINE)
# In the order in which the index has them.
GUIDE = [INDEX.parent / link for _, link in LINK_OF_INDEX.findall(INDEX.read_text())]
LEFT_OUT = "<!-- not run: "
NEEDS = "<!-- needs: "
ASKS_STATUS = "echo $?"
PAUSES = "sleep 1; "
# A busy server may need more than a second; its job prints something in the end.
UNTIL_PRINTED = 'for try in $(seq 60); do sleep 1; printed=$({}); [ -z "$printed" ] || break; done; echo "$printed"'
# Of pip in requirements.txt, of rsync, torchrun and Hydra.
OPTIONS_OF_OTHERS = {
    *("--hash", "--index-url", "--keep-dirlinks", "--log-dir", "--master-addr", "--nnodes", "--rdzv-endpoint"),
    *("--multirun", "--nproc_per_node", "--local_rank"),
}
BETWEEN = "\x1e"


class Block(NamedTuple):
    """A fenced block of a document."""

    line: int
    language: str
    text: str
    runs: bool


@dataclass
class Typed:
    """A command of a console block, and what the document says that it prints."""

    command: str
    printed: list[str] = field(default_factory=list)


def blocks_of(document: Path, language: str) -> list[Block]:
    found = []
    text = document.read_text()
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        before = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        line = text.count("\n", 0, match.start()) + 1
        needs = before.removeprefix(NEEDS).removesuffix(" -->") if before.startswith(NEEDS) else ""
        can_run = not before.startswith(LEFT_OUT) and (not needs or shutil.which(needs) is not None)
        found.append(Block(line, match[1], match[2], can_run))
    return [block for block in found if block.language == language]


def typed_in(block: Block) -> list[Typed]:
    typed: list[Typed] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            typed.append(Typed(line.removeprefix("$ ")))
        else:
            typed[-1].printed.append(line)
    return typed


def path_of(document: Path) -> str:
    """The path of a document in this repository."""
    return document.relative_to(REPOSITORY).as_posix()


def outside_of_blocks(document: Path) -> str:
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


class Desk:
    """A project with the sample's files, two servers that the documents call by address, and a shell."""

    def __init__(self, project: Path, make_server: MakeServer, home: Path) -> None:
        self.project = project
        shutil.copytree(
            REPOSITORY / "sample", project, ignore=shutil.ignore_patterns("__pycache__", "checkpoints", ".remote")
        )
        self.servers = {"10.0.0.5": make_server("gpu1"), "10.0.0.6": make_server("gpu2")}
        (home / ".ssh").mkdir(mode=0o700)
        shutil.copy(self.servers["10.0.0.5"].key, home / ".ssh" / "id_ed25519")
        gpu1, gpu2 = self.servers.values()
        hosts = (("10.0.0.7", gpu1), ("10.0.0.8", gpu2), ("10.0.0.9", gpu1))
        (home / ".ssh" / "config").write_text(
            "".join(
                f"Host {host}\nHostName 127.0.0.1\nPort {server.port}\nUser {server.username}\n"
                for host, server in hosts
            )
        )
        self.environment = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}

    def run(self, document: Path, block: Block) -> None:
        """Type what a block says, and compare."""
        where = f"{path_of(document)}:{block.line}"
        if block.language == "python":
            self._run([sys.executable, "-c", block.text], where)
            return
        typed = typed_in(block)
        # In a file, as the examples look for what they started: they would find the words in an argument.
        script = self.project.with_name("typed")
        script.write_text("".join(self._script(each.command) for each in typed) + "exit 0\n")
        output = self._run(["bash", str(script)], where).split(BETWEEN)
        answers = zip(output[0::2], output[1::2], strict=False)
        for number, (each, (printed, status)) in enumerate(zip(typed, answers, strict=True)):
            is_asked = number + 1 < len(typed) and typed[number + 1].command == ASKS_STATUS
            assert is_asked or status == "0", f"{where}: {each.command}: status {status}\n{printed}"
            missing = [line for line in each.printed if not has_line(printed, line)]
            assert not missing, f"{where}: {each.command} did not print {missing}, but:\n{printed}"

    def _script(self, command: str) -> str:
        """The command as it is with these servers, which have Python; then its status, for us and for ``$?``."""
        for address, server in self.servers.items():
            command = command.replace(f"ubuntu@{address}", f"{server.username}@127.0.0.1:{server.port}")
        if command.startswith(PAUSES):
            command = UNTIL_PRINTED.format(command.removeprefix(PAUSES))
        tell = f"last=$?; printf '{BETWEEN}%s{BETWEEN}' $last"
        if command.startswith("remote-tool init"):
            tell += f"; echo \"environment: {{existing: '{sys.prefix}'}}\" >>.remote/configs.yaml"
        return f"{command}\n{tell}; (exit $last)\n"

    def _run(self, command: list[str], where: str) -> str:
        ran = subprocess.run(
            command,
            cwd=self.project,
            env=self.environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, f"{where}: {ran.stdout}"
        return ran.stdout


def has_line(printed: str, wanted: str) -> bool:
    """Whether a line of the document is among those that were printed."""
    pattern = re.escape(" ".join(wanted.split()))
    pattern = pattern.replace("…", ".*").replace(r"\ ", " ")
    pattern = re.sub(r"\d+\\\.\d+ s\b", r"[\\d.]+ s", pattern)
    return any(re.fullmatch(pattern, " ".join(line.split())) for line in printed.splitlines() or [""])


@pytest.mark.slow
@pytest.mark.parametrize("documents", [[README], GUIDE, [SKILL]], ids=["README.md", "guide", "skill.md"])
def test_the_examples_do_what_the_documents_say(
    documents: list[Path], make_server: MakeServer, tmp_path: Path, own_home: Path
) -> None:
    """From top to bottom, and from page to page, beginning with an empty workspace."""
    desk = Desk(tmp_path / "digits", make_server, own_home)
    ran = 0
    for document in documents:
        for block in sorted(blocks_of(document, "console") + blocks_of(document, "python")):
            if block.runs:
                desk.run(document, block)
                ran += 1
    assert ran >= len(documents) / 2


def test_the_index_of_the_guide_has_every_page_by_its_title() -> None:
    titles = [title for title, _ in LINK_OF_INDEX.findall(INDEX.read_text())]
    assert sorted(GUIDE) == sorted((INDEX.parent / "guide").iterdir())
    assert titles == [page.read_text().partition("\n")[0].removeprefix("# ") for page in GUIDE]


YAML = {f"{page.name}:{block.line}": block for page in GUIDE for block in blocks_of(page, "yaml")}
SWEEPS = {name: block for name, block in YAML.items() if block.text.startswith("cmd:")}
CONFIGURATIONS = {name: block for name, block in YAML.items() if name not in SWEEPS}


@pytest.mark.parametrize("block", SWEEPS.values(), ids=SWEEPS)
def test_the_files_of_sweeps_in_the_guide_are_right(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(block.text)
    found = load_sweep_file(file)
    request = SweepRequest(found.command, grid=found.grid, random=found.random, combinations=tuple(found.combinations))
    assert len(request.made) == 120


@pytest.mark.parametrize("block", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_the_configurations_of_the_guide_are_right(block: Block) -> None:
    servers = "" if "servers:" in block.text else "servers: {gpu1: {hostname: 10.0.0.5}}\n"
    root = Path("/home/me/digits")
    assert isinstance(parse((servers + block.text).encode(), root / ".remote" / "configs.yaml", root), Config)


def anchors_of(document: Path) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", outside_of_blocks(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=path_of)
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", outside_of_blocks(document)):
        assert "://" not in link, f"{link} is not checked by any test"
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def options_by_command() -> dict[str, set[str]]:
    """Return the options of each command, with those that ``--help`` hides."""
    return {
        name: {word for each in load_command(name).params for word in (*each.opts, *each.secondary_opts)} | {"--help"}
        for name in COMMANDS
    }


def test_the_readme_has_every_command() -> None:
    text = README.read_text()
    assert re.findall(r"^\| `remote-tool (\S+)` \|", text, re.MULTILINE) == list(options_by_command())


def mentions_of(document: Path) -> list[str]:
    """Every piece of a document that may name a command or an option, without what stands in quotes."""
    spans = re.findall(r"`([^`\n]+)`", outside_of_blocks(document))
    lines = [typed.command for block in blocks_of(document, "console") for typed in typed_in(block)]
    return [re.sub(r"'[^']*'|\"[^\"]*\"", "''", text) for text in spans + lines]


@pytest.mark.parametrize("document", DOCUMENTS, ids=path_of)
def test_every_command_and_option_that_is_named_exists(document: Path) -> None:
    commands = options_by_command()
    everywhere = set[str]().union(*commands.values()) | OPTIONS_OF_OTHERS
    unknown = []
    for text in mentions_of(document):
        for name, rest in re.findall(r"remote-tool ([a-z][a-z-]*)([^;|&]*)", text):
            # What stands after -- is the program's.
            options = set(re.findall(r"(?<!\S)--[a-z-]+", rest.partition(" -- ")[0]))
            if name not in commands or not options <= commands[name]:
                unknown.append(text)
        first, _, rest = text.partition(" ")
        options = set(re.findall(r"(?<!\S)--[a-z-]+", f" {rest}".partition(" -- ")[0]))
        if first in commands and not options <= commands[first]:
            unknown.append(text)
        option = re.match(r"--[a-z_-]+", first)
        if option and option[0] not in everywhere:
            unknown.append(text)
    assert unknown == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=path_of)
def test_every_target_of_make_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {name for text in mentions_of(document) for name in re.findall(r"^make ([a-z-]+)", text)}
    assert named <= targets


def code_named_in(document: Path) -> set[str]:
    """The files, folders and names in files (``path::name``) of this repository that a document names."""
    spans = re.findall(r"`([^`\s]+)`", outside_of_blocks(document))
    return {span for span in spans if re.fullmatch(r"[\w-][\w./-]*(?:/|\.py|\.toml|\.md|\.svg)(?:::\w+)?", span)}


def exists(named: str) -> bool:
    path, _, name = named.partition("::")
    places = [root / path for root in (REPOSITORY, REPOSITORY / "remote_tool") if (root / path).exists()]
    return any(place.is_dir() or re.search(rf"\b{name}\b", place.read_text()) for place in places)


@pytest.mark.parametrize("name", ["architecture.md", "contributing.md"])
def test_every_module_and_folder_that_is_named_exists(name: str) -> None:
    named = code_named_in(REPOSITORY / "docs" / name)
    assert len(named) > 10
    assert [each for each in sorted(named) if not exists(each)] == []


def test_a_module_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "See `cli/app.py::main`, `cli/gone.py`, `cli/app.py::gone_too`, `workflows/`, `a b/`, `~/home/`."
    )
    named = code_named_in(document)
    assert named == {"cli/app.py::main", "cli/gone.py", "cli/app.py::gone_too", "workflows/"}
    assert {each for each in named if not exists(each)} == {"cli/gone.py", "cli/app.py::gone_too"}


PICTURES = [REPOSITORY / "docs" / "terminal.svg", *sorted((REPOSITORY / "docs" / "screens").iterdir())]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_recorded_terminal_shows_commands_that_exist(picture: Path) -> None:
    assert picture.stat().st_size < 60_000
    texts = [
        "".join(text.itertext()).replace("\xa0", " ")
        for text in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    ]
    typed = [text.split() for text in texts if text.startswith("remote-tool ")]
    commands = options_by_command()
    assert typed
    for _, name, *words in typed:
        assert {word for word in words if word.startswith("--")} <= commands[name]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_recorded_terminal_names_nothing_of_the_machine_that_recorded_it(picture: Path) -> None:
    for private in (rf"\b{re.escape(platform.node())}\b", "/home/", "/root", "/tmp", "https?://(?!www.w3.org/)"):
        assert not re.search(private, picture.read_text())


def test_a_line_is_compared_as_the_documents_need_it() -> None:
    assert has_line("gpu1: rsync: done (12.0 s), sent 3 files\n", "gpu1: rsync: done (0.3 s), sent …")
    assert has_line("1    gpu1     running\n", "1 gpu1 running")
    assert not has_line("gpu1: rsync: failed\n", "gpu1: rsync: done (0.3 s)")
    assert not has_line("", "something")
