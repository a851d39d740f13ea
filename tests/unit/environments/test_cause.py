"""The output of pip, uv and compilers tells the cause of a failure, and what the server lacks."""

from __future__ import annotations

import pytest

from remote_tool.environments.cause import LONGEST_CAUSE, cause_of, hint_from_output
from remote_tool.environments.facts import ServerFacts

DEBIAN = ServerFacts("gpu1", "/home/u", "x86_64", "Linux", 1000, distribution="debian")
PIP = """\
Looking in indexes: https://pypi.org/simple
ERROR: Could not find a version that satisfies the requirement nosuch==99 (from versions: none)
ERROR: No matching distribution found for nosuch==99
"""
BUILD = """\
  error: subprocess-exited-with-error

  × Getting requirements to build wheel did not run successfully.
  │ exit code: 1
  ╰─> [20 lines of output]
      Traceback (most recent call last):
        File "setup.py", line 1, in <module>
      ModuleNotFoundError: No module named 'torch'
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
error: subprocess-exited-with-error

× Getting requirements to build wheel did not run successfully.
│ exit code: 1
╰─> See above for output.
"""
COMPILER = """\
  Building wheel for x (pyproject.toml): finished with status 'error'
      x.c:1:10: fatal error: Python.h: No such file or directory
      compilation terminated.
      error: command '/usr/bin/gcc' failed with exit code 1
  ERROR: Failed building wheel for x
ERROR: Could not build wheels for x, which is required to install pyproject.toml-based projects
"""
UV = """\
error: No solution found when resolving dependencies
  cause: Because nosuch was not found in the package registry and you require nosuch==99, we can conclude so.
"""
UV_TREE = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because only httpx<=0.28 is available and you require httpx>4, we
      can conclude that it is unsatisfiable.
"""
UV_OFFLINE = """\
error: Request failed after 3 retries in 10.8s
  cause: Failed to fetch: http://127.0.0.1:9/simple/nosuch/
  cause: client error (Connect)
  cause: Connection refused (os error 111)
"""


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (PIP, "No matching distribution found for nosuch==99"),
        (BUILD, "ModuleNotFoundError: No module named 'torch'"),
        (COMPILER, "error: command '/usr/bin/gcc' failed with exit code 1"),
        (UV, "Because nosuch was not found in the package registry and you require nosuch==99, we can conclude so."),
        (
            UV_TREE,
            "Because only httpx<=0.28 is available and you require httpx>4, we can conclude that it is unsatisfiable.",
        ),
        (UV_OFFLINE, "Failed to fetch: http://127.0.0.1:9/simple/nosuch/"),
        ("x\nOSError: [Errno 28] No space left on device\nERROR: later", "OSError: [Errno 28] No space left on device"),
        ("E: Unable to locate package x\n", "E: Unable to locate package x"),
        ("Collecting x\nno such image\n", ""),
        ("", ""),
    ],
)
def test_the_line_that_says_why_is_found(output: str, cause: str) -> None:
    assert cause_of(output) in {cause, cause.removeprefix("error: ")}


def test_a_long_cause_is_cut() -> None:
    found = cause_of(f"ValueError: {'x' * 1000}")
    assert len(found) == LONGEST_CAUSE
    assert found.endswith("…")


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        (b"error: command 'gcc' failed: No such file or directory", "build-essential"),
        (b"error: command '/usr/bin/x86_64-linux-gnu-gcc' failed: No such file or directory", "build-essential"),
        (b"unable to execute 'gcc': No such file or directory", "build-essential"),
        (b"sh: 1: make: not found", "build-essential"),
        (b"foo.c:1:10: fatal error: Python.h: No such file or directory", "python3.11-dev"),
        (b"ERROR: Cannot find command 'git' - do you have 'git' installed", "apt-get install git"),
        (b"OSError: [Errno 28] No space left on device", "is full"),
        (b"CondaToSNonInteractiveError: Terms of Service", "channels"),
        (b"No matching distribution found for nosuch", ""),
        (b"WARNING: Retrying after connection broken by 'NewConnectionError(...)': /simple/x/", "PIP_INDEX_URL"),
        (b"WARNING: Retrying after connection broken by 'NewConnectionError(...)': /simple/x/", "{existing: PREFIX}"),
        (
            b"install build dependencies did not run successfully.\nrequirement setuptools (from versions: none)",
            "PIP_NO_BUILD_ISOLATION: 0",
        ),
    ],
)
def test_output_tells_what_is_lacking(output: bytes, hint: str) -> None:
    found = hint_from_output(DEBIAN, output, version="3.11")
    assert hint in found
    assert bool(hint) == bool(found)
