"""Versions from git: servers get a project's version in a variable, not its history."""

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
    """Return the variables that replace git on a server; empty without a version from git."""
    for source in packages.sources:
        texts = {name: (root / name).read_text(errors="replace") for name in source.files if _may_ask(name)}
        if any(_ASKS_GIT.search(text) for text in texts.values()):
            version = await git_version(root / source.path)
            return {_variable_for("".join(texts.values())): version} if version else {}
    return {}


def _may_ask(name: str) -> bool:
    return name.rpartition("/")[2] in {"pyproject.toml", "setup.py", "setup.cfg"}


def _variable_for(text: str) -> str:
    """Return the variable for this project only: a dependency built there has a version of its own."""
    name = _NAME.search(text)
    # hatch-vcs does not support project-specific variables.
    if name is None or "hatch-vcs" in text:
        return VARIABLE
    return f"{VARIABLE}_FOR_{re.sub('[-_.]+', '_', name[1]).upper()}"


async def git_version(folder: Path) -> str:
    """Return the version that setuptools_scm would compute: of the last tag, or the one after it; empty without git."""
    described = await _git(folder, "describe", "--tags", "--long", "--match", "*[0-9]*")
    if described:
        tag, distance, commit = described.rsplit("-", 2)
        found = _VERSION.search(tag)
        if found is None:
            return ""
        return found[0] if distance == "0" else f"{_next(found[0])}.dev{distance}+{commit}"
    count = await _git(folder, "rev-list", "--count", "HEAD")
    commit = await _git(folder, "rev-parse", "--short", "HEAD")
    return f"0.1.dev{count}+g{commit}" if count and commit else ""


def _next(version: str) -> str:
    return re.sub(r"[0-9]+$", lambda last: str(int(last[0]) + 1), version.partition(".dev")[0])


async def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = await run_program("git", "-C", str(folder), *arguments, seconds=GIT_SECONDS)
    except OSError:  # a timeout is one
        return ""
    return answer.output.decode(errors="replace").strip() if answer.status == 0 else ""
