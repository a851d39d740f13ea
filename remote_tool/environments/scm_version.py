"""The version of a project from git, for servers: they get it in a variable, as they have no history."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remote_tool.system.programs import run_program

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.environments.package_files import Packages

VARIABLE = "SETUPTOOLS_SCM_PRETEND_VERSION"
GIT_SECONDS = 10.0
_ASKS_GIT = re.compile(r"setuptools[_-]scm|use_scm_version|hatch-vcs|vcs-versioning")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc|\.post|\.dev)[0-9]+)?")
_NAME = re.compile(r"""^name\s*=\s*["']([A-Za-z0-9._-]+)["']""", re.MULTILINE)


async def version_variables(root: Path, packages: Packages) -> dict[str, str]:
    """Return the variables with a version from git; empty if the project does not ask git."""
    for source in packages.sources:
        texts = {name: (root / name).read_text(errors="replace") for name in source.files if _may_use_git(name)}
        if any(_ASKS_GIT.search(text) for text in texts.values()):
            version = await git_version(root / source.path)
            return {_variable_for("".join(texts.values())): version} if version else {}
    return {}


def _may_use_git(name: str) -> bool:
    return name.rpartition("/")[2] in {"pyproject.toml", "setup.py", "setup.cfg"}


def _variable_for(text: str) -> str:
    """Return the variable for this project alone, as dependencies that are built on a server have other versions."""
    name = _NAME.search(text)
    # hatch-vcs does not support project-specific variables.
    if name is None or "hatch-vcs" in text:
        return VARIABLE
    return f"{VARIABLE}_FOR_{re.sub('[-_.]+', '_', name[1]).upper()}"


async def git_version(folder: Path) -> str:
    """Return the version as setuptools_scm computes it, from the last tag or after it; empty without git."""
    described = await _git(folder, "describe", "--tags", "--long", "--match", "*[0-9]*")
    if described:
        tag, distance, commit = described.rsplit("-", 2)
        version = _VERSION.search(tag)
        if version is None:
            return ""
        return version[0] if distance == "0" else f"{_next(version[0])}.dev{distance}+{commit}"
    count = await _git(folder, "rev-list", "--count", "HEAD")
    commit = await _git(folder, "rev-parse", "--short", "HEAD")
    return f"0.1.dev{count}+g{commit}" if count and commit else ""


def _next(version: str) -> str:
    return re.sub(r"[0-9]+$", lambda digits: str(int(digits[0]) + 1), version.partition(".dev")[0])


async def _git(folder: Path, *arguments: str) -> str:
    try:
        result = await run_program("git", "-C", str(folder), *arguments, seconds=GIT_SECONDS)
    except OSError:  # a timeout is one
        return ""
    return result.output.decode(errors="replace").strip() if result.status == 0 else ""
