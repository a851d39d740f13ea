"""Find the files of the project that list packages, and choose the ones to install."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tomllib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from remote_tool.errors import EnvironmentSetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from remote_tool.config.environment import EnvironmentKind

_INCLUDE = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)(?:\s+|=)?(?P<file>[^\s#]+)", re.MULTILINE)
# A folder or file of this machine in requirements.txt and environment.yml: -e ../lib, lib @ file:../lib.
_LOCAL_PATH = re.compile(
    r"""^\s*(?:-\s+)?["']?(?:(?P<included>-r|--requirement|-c|--constraint|-f|--find-links)[\s=]+|(?:-e|--editable)[\s=]+)?"""
    r"""(?:[\w.,\[\]-]+\s*@\s*)?(?:file:(?://)?)?(?P<path>\.\.?/[^\s"'#;\[]*|\.\.(?=$|[\s"'#;\[]))""",
    re.MULTILINE,
)
# The same in pyproject.toml, for uv and Poetry, and in a Pipfile.
_TOML_PATH = re.compile(r"""\bpath\s*=\s*["'](?P<path>\.\.[^"']*)["']""")
PIXI = "it is for pixi, which manages its own environments"
PDM = "pdm export -o requirements.txt writes what it locks"
NO_PROJECT = "it has no [project] section"
_CHANGE_PACKAGES = "change packages: in .remote/configs.yaml"
_CONDA_FILES = ("environment.yml", "environment.yaml")
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")


class PackageInstaller(StrEnum):
    """A tool that installs packages; they run in this order."""

    CONDA = "conda"
    PIPENV = "pipenv"
    UV = "uv"
    POETRY = "poetry"
    PIP = "pip"


@dataclass(frozen=True)
class PackageSource:
    """A file or folder that packages are installed from.

    Attributes:
        name: Its name for messages, relative to the project.
        installer: The tool that installs it.
        path: The installer's argument, relative to the project: a file, or the folder of a Python project.
        files: All files that affect it, relative to the project.
        extras: Requested extras of a Python project.
        needs: A tool that the server must have for it; empty if there is an alternative.
    """

    name: str
    installer: PackageInstaller
    path: str
    files: tuple[str, ...]
    extras: tuple[str, ...] = ()
    needs: str = ""


@dataclass(frozen=True)
class Unusable:
    """A package file that cannot be installed."""

    name: str
    reason: str


@dataclass(frozen=True)
class Packages:
    """Packages to install, and package files that are not installed.

    Attributes:
        sources: In installation order; may be empty.
        digests: SHA-256 of every file that affects them, by path relative to the project.
        has_hashes: Whether packages are pinned by hash, which pip then requires for all.
        ignored: Files that are not installed, as another one takes precedence.
        unusable: Files that cannot be installed; only set if no file can be.
        outside: Paths outside the project, each with the file that refers to it.
    """

    sources: tuple[PackageSource, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    has_hashes: bool = False
    ignored: tuple[str, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    outside: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return ", ".join(source.name for source in self.sources)


def find_packages(root: Path, kind: EnvironmentKind, named: Sequence[str] | None = None) -> Packages:
    """Find the packages to install: those in configs.yaml, or the first match in the project.

    Raises:
        EnvironmentSetupError: A file cannot be read, or a file in configs.yaml cannot be installed.
    """
    if named is not None:
        sources = tuple(source for text in named for source in _named(root, kind, text))
        return _packages(
            root, tuple(sorted(sources, key=lambda source: list(PackageInstaller).index(source.installer)))
        )
    candidates = list(_candidates(root, kind))
    usable = [each for each in candidates if isinstance(each, PackageSource)]
    unusable = tuple(each for each in candidates if isinstance(each, Unusable))
    if not usable:
        return Packages(unusable=unusable)
    packages = _packages(root, (usable[0],))
    others = [each.name for each in candidates if each is not usable[0] and not _is_settings(each)]
    return replace(packages, ignored=tuple(others))


def _packages(root: Path, sources: tuple[PackageSource, ...]) -> Packages:
    names = dict.fromkeys(name for source in sources for name in source.files)
    texts = {name: _read(root, name) for name in names}
    requirements = [name for source in sources if source.installer is PackageInstaller.PIP for name in source.files]
    return Packages(
        sources,
        {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()},
        has_hashes=any(b"--hash=" in texts[name] for name in requirements),
        outside=tuple(pair for name, text in texts.items() for pair in _outside(name, text.decode(errors="replace"))),
    )


def _candidates(root: Path, kind: EnvironmentKind) -> Iterator[PackageSource | Unusable]:
    if (root / "requirements.txt").is_file():
        yield _requirements(root, "requirements.txt")
    if (root / "Pipfile").is_file():
        yield _pipfile(root)
    if (project := _project(root, ".")) is not None:
        yield project
    yield from _other_requirements(root)
    for name in _CONDA_FILES:
        if (root / name).is_file():
            yield _conda_file(name, kind)
    if (root / "pdm.lock").is_file():
        yield Unusable("pdm.lock", PDM)
    if (root / "pixi.toml").is_file():
        yield Unusable("pixi.toml", PIXI)


def _requirements(root: Path, name: str) -> PackageSource:
    return PackageSource(name, PackageInstaller.PIP, name, tuple(_with_included(root, name)))


def _pipfile(root: Path) -> PackageSource:
    return PackageSource(
        "Pipfile", PackageInstaller.PIPENV, "Pipfile", tuple(_existing(root, ".", ("Pipfile", "Pipfile.lock")))
    )


def _conda_file(name: str, kind: EnvironmentKind) -> PackageSource | Unusable:
    if kind.is_conda:
        return PackageSource(name, PackageInstaller.CONDA, name, (name,))
    return Unusable(name, f"it requires environment: miniconda or miniforge, and this environment is {kind}")


def _other_requirements(root: Path) -> Iterator[PackageSource | Unusable]:
    """Yield requirements files with other names: one file is used, several are ambiguous."""
    if (root / "requirements.txt").is_file():
        return
    files = sorted(root.glob("requirements/*.txt")) + sorted(root.glob("requirements[-_]*.txt"))
    names = [str(file.relative_to(root)) for file in files if file.is_file()]
    if len(names) == 1:
        yield _requirements(root, names[0])
    elif names:
        yield Unusable(", ".join(names), f"choose what to install in configs.yaml, such as packages: [{names[0]}]")


def _project(root: Path, folder: str, extras: tuple[str, ...] = ()) -> PackageSource | Unusable | None:
    """Return the Python project in a folder, for uv or Poetry if it has their lock, else for pip."""
    files = list(_existing(root, folder, _PROJECT_FILES))
    if not files:
        return None
    data = _toml(root, files[0]) if files[0].endswith("pyproject.toml") else {}
    poetry = data.get("tool", {}).get("poetry", {})
    needs = "poetry" if poetry.get("package-mode") is False else ""
    if (found := _lock(root, folder, data)) is not None:
        lock, installer = found
        return PackageSource(lock, installer, folder, (*files, lock), extras, needs)
    if poetry or "project" in data:
        return PackageSource(
            files[0], PackageInstaller.POETRY if needs else PackageInstaller.PIP, folder, tuple(files), extras, needs
        )
    if _has_setup(root, folder):
        setup = next(name for name in files if not name.endswith("pyproject.toml"))
        return PackageSource(setup, PackageInstaller.PIP, folder, tuple(files), extras)
    if not data:
        return None
    return Unusable(files[0], PIXI if "pixi" in data.get("tool", {}) else NO_PROJECT)


def _lock(root: Path, folder: str, data: Mapping[str, Any]) -> tuple[str, PackageInstaller] | None:
    """Return the lock of a Python project, and its installer."""
    uses_poetry = "poetry" in data.get("tool", {}) or "poetry" in str(data.get("build-system", ""))
    kinds = (("uv.lock", PackageInstaller.UV, "project" in data), ("poetry.lock", PackageInstaller.POETRY, uses_poetry))
    return next(
        ((name, installer) for lock, installer, fits in kinds if fits for name in _existing(root, folder, (lock,))),
        None,
    )


def _is_settings(candidate: PackageSource | Unusable) -> bool:
    """Return whether a candidate is a pyproject.toml with settings of tools only."""
    return isinstance(candidate, Unusable) and candidate.reason == NO_PROJECT


def _has_setup(root: Path, folder: str) -> bool:
    """Return whether setuptools finds a project without [project]."""
    setup = root / folder / "setup.cfg"
    return (root / folder / "setup.py").is_file() or (setup.is_file() and b"[metadata]" in setup.read_bytes())


def _named(root: Path, kind: EnvironmentKind, text: str) -> Iterable[PackageSource]:
    """Return the source for an entry of ``packages:``."""
    path, _, rest = text.partition("[")
    path, extras = posixpath.normpath(path), tuple(re.findall(r"[\w.-]+", rest))
    location = root / path
    if not location.exists():
        raise EnvironmentSetupError(f"packages: {path} does not exist", hint=_CHANGE_PACKAGES)
    found = _of_folder(root, path, extras) if location.is_dir() else _of_file(root, path, kind, extras)
    for each in found:
        if isinstance(each, Unusable):
            raise EnvironmentSetupError(f"packages: cannot install {each.name}: {each.reason}", hint=_CHANGE_PACKAGES)
    return [each for each in found if isinstance(each, PackageSource)]


def _of_folder(root: Path, path: str, extras: tuple[str, ...]) -> list[PackageSource | Unusable]:
    project = _project(root, path, extras)
    if isinstance(project, PackageSource):
        return [project]
    files = sorted((root / path).glob("*.txt"))
    usual = [file for file in files if file.name == "requirements.txt"]
    if not files:
        return [project or Unusable(path, "the folder contains no pyproject.toml, setup.py or *.txt")]
    return [_requirements(root, str(file.relative_to(root))) for file in usual or files]


def _of_file(root: Path, path: str, kind: EnvironmentKind, extras: tuple[str, ...]) -> list[PackageSource | Unusable]:
    name = posixpath.basename(path)
    if name in _PROJECT_FILES:
        return [_project(root, posixpath.dirname(path) or ".", extras) or Unusable(path, "it is not a Python project")]
    if path == "Pipfile":
        return [_pipfile(root)]
    if name.endswith((".yml", ".yaml")):
        return [_conda_file(path, kind)]
    if name.endswith((".whl", ".tar.gz", ".zip")):
        return [PackageSource(path, PackageInstaller.PIP, f"./{path}", (path,), extras)]
    if name.endswith((".txt", ".in")):
        return [_requirements(root, path)]
    return [Unusable(path, "it is not a requirements file (*.txt), Pipfile, environment.yml, wheel or Python project")]


def _toml(root: Path, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads((root / name).read_text(encoding="utf-8"))
    except ValueError as error:
        raise EnvironmentSetupError(f"{name}: {error}") from error


def _read(root: Path, name: str) -> bytes:
    try:
        return (root / name).read_bytes()
    except OSError as error:
        raise EnvironmentSetupError(f"{name} cannot be read: {error.strerror}") from error


def _existing(root: Path, folder: str, names: Iterable[str]) -> Iterator[str]:
    return (_join(folder, name) for name in names if (root / folder / name).is_file())


def _join(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"


def _with_included(root: Path, name: str) -> list[str]:
    """Return the file and the files that it includes, within the project."""
    found: list[str] = []
    pending = [name]
    while pending:
        current = pending.pop(0)
        if current in found or not (root / current).is_file():
            continue
        found.append(current)
        text = (root / current).read_text(encoding="utf-8", errors="replace")
        pending += filter(None, (_inside(current, match["file"]) for match in _INCLUDE.finditer(text)))
    return found


def _inside(including: str, included: str) -> str:
    """Return the path of an included file relative to the project; empty for a URL or a path outside of it."""
    if "://" in included or "$" in included or included.startswith("/"):
        return ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(including), included))
    return "" if _leads_out(path) else path


def _outside(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the name of a file with each path outside the project; pip resolves paths from the project's folder."""
    folder = posixpath.dirname(name)
    is_requirements = name.endswith((".txt", ".in"))
    if is_requirements or name.endswith((".yml", ".yaml")):
        matches = _LOCAL_PATH.finditer(text)
    elif posixpath.basename(name) in {"pyproject.toml", "Pipfile"}:
        matches = _TOML_PATH.finditer(text)
    else:
        return
    for match in matches:
        is_from_project = is_requirements and not match["included"]
        path = posixpath.normpath(match["path"] if is_from_project else posixpath.join(folder, match["path"]))
        if _leads_out(path):
            yield name, path


def _leads_out(path: str) -> bool:
    return path == ".." or path.startswith("../")
