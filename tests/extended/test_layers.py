"""The rules of docs/architecture.md on who may import whom: kept, and each seen to fail on a trespass."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import remote_tool

PACKAGE = Path(remote_tool.__file__).parent
SUPERVISOR = sorted(path for name in ("agent", "protocol") for path in (PACKAGE / name).rglob("*.py"))
OURS = ("remote_tool.agent", "remote_tool.protocol")
OLDEST_PYTHON = (3, 8)

LAYERS = "layers: a module imports only from further down, and modules of one layer not from each other"
CYCLES = "no import cycle between siblings, type-only imports counted"
STANDARD_LIBRARY = "the agent and the protocol have the standard library only"
AGENT = "nothing on this side imports the agent, which runs on servers"
ASYNCSSH = "asyncssh only behind the seam, and in the demo's server"
TYPER_AND_RICH = "Typer and Rich only in cli"
YAML = "YAML only in config"
TORCH = "torch nowhere in the package"
PACKAGES = ("asyncssh", "yaml", "typer", "rich", "torch")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package and its settings, where a trespass harms nobody."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> str:
    """Run import-linter in a folder; return its report on one line, as names are folded at a terminal's width."""
    program = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=folder, check=False, capture_output=True, text=True
    )
    report = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", linted.stdout).split())
    assert "Contracts: " in report, linted.stdout + linted.stderr
    assert (linted.returncode == 0) == (" 0 broken" in report)
    return report


def broken_contracts(folder: Path) -> set[str]:
    """Return the names of the contracts that import-linter calls broken."""
    report = lint(folder)
    known = (LAYERS, CYCLES, STANDARD_LIBRARY, AGENT, ASYNCSSH, TYPER_AND_RICH, YAML, TORCH)
    broken = {name for name in known if f"{name} BROKEN" in report}
    assert f" {len(broken)} broken" in report
    return broken


@pytest.mark.slow
def test_every_contract_is_kept_by_the_package_as_it_is(copied: Path) -> None:
    assert broken_contracts(copied) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("config/model.py", "import remote_tool.workspace", LAYERS),
        ("workflows/servers/init.py", "from remote_tool.cli import options", LAYERS),
        ("transport/sync/push.py", "from remote_tool.jobs import job", LAYERS),
        ("jobs/job.py", "from remote_tool.launchers import torch as launcher", LAYERS),
        ("launchers/torch.py", "from remote_tool.environments import plan", LAYERS),
        ("environments/plan.py", "from remote_tool.transport import host", LAYERS),
        ("agent/control.py", "from remote_tool.config import model", LAYERS),
        ("agent/control.py", "from remote_tool import Workspace", LAYERS),
        ("homeless.py", "import os", LAYERS),
        ("jobs/job.py", "if TYPE_CHECKING:\n    from remote_tool.jobs import registry", CYCLES),
        ("workflows/jobs/run.py", "from remote_tool.workflows.launch import launch", CYCLES),
        ("agent/control.py", "from remote_tool import errors", STANDARD_LIBRARY),
        ("workflows/servers/check.py", "from remote_tool.agent import control", AGENT),
        ("config/model.py", "def late():\n    from remote_tool.agent.supervisor import log_limit", AGENT),
        ("transport/pool.py", "import asyncssh", ASYNCSSH),
        ("workflows/jobs/run.py", "import asyncssh.connection", ASYNCSSH),
        ("workflows/jobs/run.py", "from rich.table import Table", TYPER_AND_RICH),
        ("workspace/project.py", "def late():\n    import typer", TYPER_AND_RICH),
        ("workflows/servers/init.py", "import yaml", YAML),
        ("cli/output/console.py", "import yaml", YAML),
        ("launchers/torch.py", "import torch", TORCH),
        ("agent/facts.py", "def late():\n    import torch", TORCH),
    ],
)
def test_a_trespass_breaks_the_contract_that_forbids_it(
    copied: Path, module: str, statement: str, contract: str
) -> None:
    with (copied / PACKAGE.name / module).open("a") as file:
        file.write(f"\n{statement}\n")
    broken = broken_contracts(copied)
    assert contract in broken
    # An import of what is further up closes a cycle, too.
    assert broken <= {contract, STANDARD_LIBRARY, CYCLES}, "what else broke hides which contract answers"


@pytest.mark.slow
def test_the_protocol_does_not_import_the_agent(copied: Path) -> None:
    """Not even for a type."""
    with (copied / PACKAGE.name / "protocol" / "records.py").open("a") as file:
        file.write("\nif TYPE_CHECKING:\n    from remote_tool.agent.requests import Request\n")
    assert broken_contracts(copied) == {LAYERS, AGENT, CYCLES}


@pytest.mark.slow
def test_the_supervisor_imports_no_package_that_another_contract_knows(copied: Path) -> None:
    with (copied / PACKAGE.name / "agent" / "control.py").open("a") as file:
        file.writelines(f"\nimport {package}\n" for package in PACKAGES)
    report = lint(copied)
    assert all(f"remote_tool.agent is not allowed to import {package}:" in report for package in PACKAGES)


def foreign_imports(source: str) -> set[str]:
    """Return what a module of the supervisor imports that a server's Python may not have."""
    nodes = list(ast.walk(ast.parse(source)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    absolute = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    # On the server no package stands around the supervisor.
    outside = {f".. {node.module or ''}" for node in nodes if isinstance(node, ast.ImportFrom) and node.level > 1}
    # The user's own, which the start-up file loads after itself.
    known = {*sys.stdlib_module_names, "sitecustomize"}
    foreign = {name for name in plain | absolute if name.split(".")[0] not in known}
    return {name for name in foreign if not name.startswith(OURS)} | outside


@pytest.mark.parametrize("module", SUPERVISOR, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_supervisor_imports_the_standard_library_and_its_siblings_only(module: Path) -> None:
    assert foreign_imports(module.read_text()) == set()


@pytest.mark.parametrize(
    "statement",
    ["import numpy", "from psutil import Process", "from ...paths import RemotePaths", "import remote_tool"],
)
def test_a_foreign_import_is_seen(statement: str) -> None:
    assert foreign_imports(f"import os\nfrom . import records\n\ndef late():\n    {statement}\n")


@pytest.mark.parametrize("module", SUPERVISOR, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_supervisor_is_written_for_the_oldest_python_of_a_server(module: Path) -> None:
    ast.parse(module.read_text(), feature_version=OLDEST_PYTHON)
