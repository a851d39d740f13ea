"""Explain a failed step by its output: the line with the cause, and a hint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remote_tool.environments.system_packages import install_command

if TYPE_CHECKING:
    from remote_tool.environments.facts import ServerFacts

# Specific patterns come first; the last line that matches one counts.
_CAUSES = tuple(
    re.compile(pattern)
    for pattern in (
        r"No space left on device|Disk quota exceeded",
        r"^cause: (?:Because|Failed to fetch)",
        r"^(?:ERROR: )?(?:No matching distribution found|Cannot install .* because)",
        r"fatal error: |: error: |^error: (?:command '.*' failed|invalid command)|not found$",
        r"^[A-Za-z_][\w.]*(?:Error|Exception|NotFound\w*)\b[^:]{0,80}: \S",
        r"^(?:ERROR|Error|error|fatal|E)[: ]",
    )
)
# Remarks of pip after the error itself.
_REMARKS = re.compile(
    r"subprocess-exited-with-error|metadata-generation-failed|ResolutionImpossible: for help"
    r"|Failed to build |Failed building |Could not build wheels|originates from a subprocess"
)
# uv may draw a tree of causes, and wrap its lines.
_TREE = re.compile(r"[╰├]─▶ (?P<cause>.*(?:\n {6}.*)*)")
_LABEL = re.compile(r"^(?:ERROR|Error|error|cause): ")
LONGEST_CAUSE = 300
# Messages of a build on a server that lacks a system package.
_MISSING = (
    ("headers", re.compile(rb"Python\.h: No such file")),
    (
        "compiler",
        re.compile(
            rb"command '[^']*(?:gcc|cc|g\+\+|clang)' failed: No such file"
            rb"|(?:unable to execute|unknown compiler|No such file or directory:) '[^']*(?:gcc|cc|g\+\+|clang)'"
            rb"|\b(?:gcc|cc|g\+\+|make): (?:command )?not found"
            rb"|[Nn]o CMAKE_C(?:XX)?_COMPILER could be found|Unknown compiler\(s\)"
        ),
    ),
    ("git", re.compile(rb"Cannot find command 'git'|Git executable not found|\bgit: (?:command )?not found")),
)
# How a hint begins when pip or uv reach no package index, and their messages then.
NO_INDEX = "the server cannot reach the package index"
_INDEX_UNREACHABLE = re.compile(
    rb"NewConnectionError|ConnectTimeoutError|NameResolutionError"
    rb"|Failed to fetch: .*(?:\n.*){0,4}client error \(Connect\)"
)
# Messages when they cannot create the environment for building a package.
_NO_BUILD_ENVIRONMENT = re.compile(
    rb"(?:build dependencies|to install build dependencies) did not run|Failed to resolve requirements from"
)


def cause_of(output: str) -> str:
    """Return the cause in the output of a failed step, on one line; empty if there is none."""
    branches = list(_TREE.finditer(output))
    if branches:
        return _shortened(" ".join(branches[-1]["cause"].split()))
    lines = [line.strip(" \t│|") for line in output.splitlines()]
    lines = [line for line in lines if line and not _REMARKS.search(line)]
    for pattern in _CAUSES:
        matches = [line for line in lines if pattern.search(line)]
        if matches:
            return _shortened(_LABEL.sub("", matches[-1]))
    return ""


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_CAUSE else f"{line[: LONGEST_CAUSE - 1]}…"


def hint_from_output(
    facts: ServerFacts, output: bytes, *, version: str = "3", kind: str = "miniconda", is_direct: bool = True
) -> str:
    """Return advice if the output of a step shows that the server lacks something; else an empty string."""
    if b"No space left on device" in output or b"Disk quota exceeded" in output:
        return f"the disk of {facts.server} is full: free some space, then run the command again"
    if b"CondaToSNonInteractiveError" in output:
        return (
            "these channels have terms of service that you must accept yourself; "
            f"or name conda-forge instead, in environment.{kind}.channels and in environment.yml"
        )
    if b"setuptools-scm was unable to detect version" in output:
        return (
            "the version comes from git, and the git history is not sent: "
            'set env: {SETUPTOOLS_SCM_PRETEND_VERSION: "1.0"} in .remote/configs.yaml'
        )
    if without_index := _hint_without_index(facts, output, is_direct=is_direct):
        return without_index
    for tool, message in _MISSING:
        if message.search(output):
            return install_command(facts, tool, version=version)
    return ""


def _hint_without_index(facts: ServerFacts, output: bytes, *, is_direct: bool) -> str:
    """Return advice if the server reaches no package index; else an empty string."""
    variable, value = ("UV_NO_BUILD_ISOLATION", 1) if facts.uv else ("PIP_NO_BUILD_ISOLATION", 0)
    through = "set internet: through-me to reach it through this machine; or " if is_direct else ""
    index = (
        f"{through}set {'UV_DEFAULT_INDEX' if facts.uv else 'PIP_INDEX_URL'} under env: to an index that it can reach, "
        "or environment: {existing: PREFIX} to an environment that has the packages"
    )
    if _NO_BUILD_ENVIRONMENT.search(output) and (
        _INDEX_UNREACHABLE.search(output) or b"(from versions: none)" in output
    ):
        return (
            f"{NO_INDEX}, and a build installs setuptools from it into an environment "
            f"of its own (build isolation): {index}; or install setuptools and wheel in the environment and set "
            f"{variable}: {value} under env:"
        )
    return f"{NO_INDEX}: {index}" if _INDEX_UNREACHABLE.search(output) else ""
