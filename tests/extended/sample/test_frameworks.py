"""The page "Your framework" is true: each example runs on two servers, with the framework itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.extended.test_documents import Block, Desk
from tests.program import remote_tool
from tests.project import write_configuration

if TYPE_CHECKING:
    from tests.conftest import MakeServer

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "frameworks.md"
FRAMEWORKS = (REPOSITORY / ".cache" / "frameworks").resolve()
SECTIONS = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)[1:]
_FENCED = re.compile(
    r"^<!-- (?P<what>file|needs): (?P<names>[^>]*) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def lacks(name: str) -> bool:
    """Whether there is neither such a program nor such a module."""
    if shutil.which(name) is not None:
        return False
    command = [
        str(FRAMEWORKS / "bin" / "python"),
        "-c",
        f"import importlib.util as u; exit(u.find_spec({name!r}) is None)",
    ]
    return subprocess.run(command, check=False).returncode != 0


@pytest.mark.slow
@pytest.mark.skipif(not (FRAMEWORKS / "bin" / "python").exists(), reason="no .cache/frameworks: make test brings it")
@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0].strip("# "))
def test_the_example_of_a_framework_runs(section: str, make_server: MakeServer, tmp_path: Path, own_home: Path) -> None:
    blocks = list(_FENCED.finditer(section))
    missing = {name for block in blocks if block["what"] == "needs" for name in block["names"].split() if lacks(name)}
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    desk = Desk(tmp_path / "digits", make_server, own_home)
    write_configuration(desk.project, desk.servers.values(), environment={"existing": str(FRAMEWORKS)})
    for block in blocks:
        if block["what"] == "file":
            (desk.project / block["names"]).parent.mkdir(exist_ok=True)
            (desk.project / block["names"]).write_text(block["text"])
    prepared = remote_tool("setup", cwd=desk.project, timeout=300)
    assert prepared.returncode == 0, prepared.stderr
    ran = [Block(0, block["language"], block["text"], runs=True) for block in blocks if block["what"] == "needs"]
    assert ran
    for each in ran:
        desk.run(PAGE, each)


def test_every_block_of_the_page_is_a_file_or_runs() -> None:
    text = PAGE.read_text()
    assert len(_FENCED.findall(text)) == len(re.findall(r"^```\w+$", text, re.MULTILINE))
