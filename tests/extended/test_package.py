"""What ``pip install .`` gives: what it needs, what it carries, and that it works with nothing else."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import remote_tool

REPOSITORY = Path(__file__).parents[2]
SAMPLE = "remote_tool/workflows/demo/sample"
ON_SERVERS = [path for name in ("agent", "protocol") for path in (REPOSITORY / "remote_tool" / name).rglob("*.py")]


def requirements(package: str, extra: str = "") -> dict[str, Requirement]:
    """Return what a package needs on this machine, by name."""
    found = [Requirement(text) for text in requires(package) or ()]
    return {
        canonicalize_name(each.name): each
        for each in found
        if each.marker is None or each.marker.evaluate({"extra": extra})
    }


@pytest.mark.picked
@pytest.mark.row(64)
def test_only_an_ssh_library_without_known_holes_is_accepted() -> None:
    """2.24.0 is the first release with all of them closed."""
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        wanted = [Requirement(text) for text in tomllib.load(file)["project"]["dependencies"]]
    for each in (requirements("remote-tool")["asyncssh"], *[each for each in wanted if each.name == "asyncssh"]):
        assert "2.24.0" in each.specifier
        assert not any(old in each.specifier for old in ("2.14.2", "2.23.0", "2.23.1"))


@pytest.mark.row(64)
def test_the_scp_and_sftp_of_the_ssh_library_are_not_used() -> None:
    """Servers have named files outside of the target in it; ours come by rsync one way, and by our protocol the other.

    Only modules of one folder use the library, as the import contracts have it.
    """
    folder = REPOSITORY / "remote_tool" / "transport" / "ssh"
    text = "\n".join(file.read_text() for file in folder.rglob("*.py"))
    assert not re.search(r"\b(scp|sftp|start_sftp_client)\b", text, re.IGNORECASE)


def test_torch_is_needed_for_the_sample_only() -> None:
    assert "torch" not in requirements("remote-tool")
    assert {"torch", "scikit-learn"} <= set(requirements("remote-tool", extra="sample"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as pip installs it, from a checkout in which somebody has worked."""
    folder = tmp_path_factory.mktemp("package")
    checkout, target = folder / "checkout", folder / "installed"
    for name in ("remote_tool", "sample"):
        # What other tests compile meanwhile comes and goes.
        shutil.copytree(REPOSITORY / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPOSITORY / name, checkout)
    caches = (f"{name}/__pycache__/x.pyc" for name in ("remote_tool", "sample"))
    for litter in ("sample/checkpoints/digits.pt", "sample/.remote/configs.yaml", *caches):
        (checkout / litter).parent.mkdir(exist_ok=True)
        (checkout / litter).write_text("litter")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    # Paths of this machine are no business of the package, so a warning about them is no business of this test.
    subprocess.run([*pip, "--target", str(target), str(checkout)], check=True, timeout=300, capture_output=True)
    return target


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that pip would install along, and no other."""
    folder = tmp_path_factory.mktemp("dependencies")
    needed, wanted = set[str](), set(requirements("remote-tool"))
    while wanted:
        needed |= wanted
        wanted = {name for each in wanted for name in requirements(each)} - needed
    # Extras of dependencies: asyncssh[bcrypt].
    for name in needed | {"bcrypt"}:
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            (folder / top).symlink_to(Path(str(package.locate_file(top))))
    return folder


def run(installed: Path, dependencies: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed program; without -S the packages of the tests would be there too."""
    environment = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{dependencies}"}
    program = [sys.executable, "-S", str(installed / "bin" / "remote-tool")]
    return subprocess.run(
        [*program, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=installed,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_the_package_carries_the_sample_and_its_types_and_no_litter(installed: Path) -> None:
    assert (installed / "remote_tool" / "py.typed").is_file()
    scripts = {path.relative_to(REPOSITORY) for path in (REPOSITORY / "remote_tool").rglob("*.sh")}
    assert {path.relative_to(installed) for path in installed.rglob("*.sh")} == scripts
    carried = {path.name for path in (installed / SAMPLE).rglob("*") if "__pycache__" not in path.parts}
    games = {"self_play.py", "train_value.py", "play_and_train.py"}
    assert carried == {"train_digits.py", "hello_world.py", "api_sample.py", "requirements.txt"} | games
    # pip itself compiles what it installs; what lay in the checkout is not among it.
    assert not list(installed.rglob("x.pyc"))
    assert {path.name for path in installed.iterdir()} - {"bin", "remote_tool"} == {"remote_tool-0.1.0.dist-info"}


@pytest.mark.slow
def test_the_installed_program_shows_its_commands_without_torch(installed: Path, dependencies: Path) -> None:
    shown = run(installed, dependencies, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "helper-torch-launch" in shown.stdout
    assert not (dependencies / "torch").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["init", "prepare", "run", "job-run", "job-list", "helper-torch-launch", "rsync", "demo"]
)
def test_every_command_of_the_installed_program_loads(installed: Path, dependencies: Path, command: str) -> None:
    shown = run(installed, dependencies, command, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.slow
def test_the_installed_program_writes_and_reads_a_workspace(
    installed: Path, dependencies: Path, tmp_path: Path
) -> None:
    shutil.copytree(installed, tmp_path / "installed", symlinks=True)
    here = tmp_path / "installed"
    made = run(here, dependencies, "init", "--name", "digits", "--server", "gpu1=user@127.0.0.1:9")
    assert made.returncode == 0, made.stderr
    listed = run(here, dependencies, "job-list", "--stopped", "--json")
    assert '"jobs": []' in listed.stdout


@pytest.mark.slow
def test_the_demo_without_torch_says_what_to_install(installed: Path, dependencies: Path) -> None:
    told = run(installed, dependencies, "demo")
    assert told.returncode == 2
    error, hint = told.stderr.splitlines()
    assert error.startswith("error: The demo trains with torch and ")
    assert " this Python has no torch and no s" in error
    assert hint.startswith("hint: ")
    assert hint.endswith(" -m pip install 'torch>=2.4' 'scikit-learn>=1.5'")


def test_the_names_of_the_package_are_listed() -> None:
    assert set(remote_tool.__all__) <= set(dir(remote_tool))


def test_a_server_needs_python_3_8_and_no_package() -> None:
    """Imports inside functions count too: the agent would fail only once it gets there."""
    allowed = {*sys.stdlib_module_names, "sitecustomize", "remote_tool.agent", "remote_tool.protocol"}
    for path in ON_SERVERS:
        nodes = list(ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
        foreign = [name for name in names if allowed.isdisjoint({name.split(".")[0], ".".join(name.split(".")[:2])})]
        assert not foreign, f"{path} imports {foreign}"


def test_make_goes_on_without_the_programs_that_it_may_not_install(tmp_path: Path) -> None:
    """It says which are missing, and how to get them."""
    (tmp_path / "id").symlink_to(shutil.which("id") or "")
    command = ["/bin/sh", str(REPOSITORY / "tools" / "need"), "id=coreutils", "no-such-program=rsync", "python3-venv"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert answer.stdout == "to do all of it, this is missing: sudo apt-get install rsync python3-venv\n"
