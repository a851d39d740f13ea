"""Of what pip, uv and compilers print, the line that says why they failed."""

from __future__ import annotations

import pytest

from remote_tool.environments.cause import LONGEST_CAUSE, cause_of

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
