"""What ``pip install .`` gives: what it needs, what it carries, and that it works with nothing else."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import remote_tool

REPOSITORY = Path(__file__).parents[2]
SAMPLE = "remote_tool/workflows/demo/sample"
METADATA = f"remote_tool-{remote_tool.__version__}.dist-info"
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


def build(checkout: Path, target: Path, *options: str) -> dict[str, bytes]:
    """Build as make dist does, and return the bytes of each file."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *options]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, check=True, timeout=300, capture_output=True, cwd=checkout, env=environment)
    return {path.name: path.read_bytes() for path in target.iterdir()}


@pytest.mark.slow
def test_a_commit_gives_the_same_bytes_wherever_and_whenever_it_is_built(tmp_path: Path) -> None:
    """Also from the source distribution itself; what somebody has left in the checkout is in none of them."""
    caches = ("__pycache__", ".*_cache", ".hypothesis", ".coverage*")
    ignored = shutil.ignore_patterns(".git", ".venv", ".cache", "dist", *caches)
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "second"
    shutil.copytree(REPOSITORY, first, ignore=ignored)
    shutil.copytree(REPOSITORY, second, ignore=ignored)
    for path in [second, *second.rglob("*")]:
        path.chmod(0o700 if path.is_dir() or os.access(path, os.X_OK) else 0o600)
        os.utime(path, (1600000000, 1600000000))
    places = ("notes.txt", "keys/id_ed25519", "remote_tool/__pycache__/x.pyc", "remote_tool/.env")
    for litter in (*places, "sample/.remote/configs.yaml"):
        (second / litter).parent.mkdir(exist_ok=True)
        (second / litter).write_text("litter")
    built = build(first, tmp_path / "one")
    (wheel,) = (tmp_path / "one").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert archive.read(metadata).startswith(b"Metadata-Version: 2.4\n"), "a newer one is refused by indexes"
    assert build(second, tmp_path / "two") == built
    (source,) = (tmp_path / "one").glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    again = build(tmp_path / "source" / source.name.removesuffix(".tar.gz"), tmp_path / "three", "-t", "wheel")
    assert again.items() < built.items()


@pytest.mark.slow
def test_uv_installs_the_program_into_an_empty_home(tmp_path: Path, own_home: Path) -> None:
    """Its dependencies come from the package index, so this is skipped where there is none."""
    (wheel,) = build(REPOSITORY, tmp_path / "built", "-t", "wheel")
    command = [f"{sys.prefix}/bin/uv", "tool", "install", "--python", sys.executable, str(tmp_path / "built" / wheel)]
    environment = {**os.environ, "HOME": str(own_home), "UV_HTTP_TIMEOUT": "30"}
    answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)
    if "Failed to fetch" in answer.stderr:
        pytest.skip("no package index answers")
    assert answer.returncode == 0, answer.stderr
    shown = subprocess.run([own_home / ".local/bin/remote-tool", "--version"], check=True, capture_output=True)
    assert shown.stdout.decode() == f"remote-tool {remote_tool.__version__}\n"
    assert list(own_home.glob(".local/share/uv/tools/remote-tool/share/man/man1/remote-tool.1"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as pip installs it, from a checkout in which somebody has worked."""
    folder = tmp_path_factory.mktemp("package")
    checkout, target = folder / "checkout", folder / "installed"
    for name in ("remote_tool", "sample", "share"):
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
    assert (
        carried == {"train_digits.py", "tune_digits.py", "hello_world.py", "api_sample.py", "requirements.txt"} | games
    )
    # pip itself compiles what it installs; what lay in the checkout is not among it.
    assert not list(installed.rglob("x.pyc"))
    assert {path.name for path in installed.iterdir()} == {"bin", "share", "remote_tool", METADATA}


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


def test_the_changelog_has_this_version_with_its_date() -> None:
    """A release on GitHub takes its text from there."""
    heading = rf"## {re.escape(remote_tool.__version__)} \(20\d\d-\d\d-\d\d\)"
    assert re.search(f"^{heading}$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("answer", "status", "printed"),
    [
        ('{"dependencies": [{"name": "rich", "version": "15.0.0", "vulns": [{"id": "A-1"}]}]}', 1, "rich 15.0.0: A-1"),
        ('{"dependencies": [{"name": "rich", "skip_reason": "not found"}]}', 0, "PyPI did not say"),
        ("", 0, "PyPI did not say"),
    ],
    ids=["a hole", "not known there", "no answer"],
)
def test_dependencies_with_holes_are_named_and_an_index_without_an_answer(
    tmp_path: Path, answer: str, status: int, printed: str
) -> None:
    """As with pip-audit, whose place a stand-in takes. Licenses that are not in the list would be printed, too."""
    (tmp_path / "pip_audit.py").write_text(f"print({answer!r}); raise SystemExit(1)")
    command = [sys.executable, str(REPOSITORY / "tools" / "dependencies.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    checked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)
    assert (checked.returncode, checked.stderr) == (status, "")
    assert printed in checked.stdout
    assert "license" not in checked.stdout


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
