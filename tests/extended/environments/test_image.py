"""Whether a server has the image of its containers."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from remote_tool.environments.image import PRESENT, check_script
from tests.extended.environments.test_facts import stub

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("engine", "present"), [("", False), ("exit 1", False), ('[ "$3" = "an image" ]', True)])
def test_an_image_is_there_when_an_engine_says_so(tmp_path: Path, engine: str, *, present: bool) -> None:
    """A server without podman and docker has none."""
    programs = tmp_path / "bin"
    stub(programs, "id", "echo 1000")
    if engine:
        stub(programs, "podman", engine)
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=check_script("an image").encode(),
        check=False,
        capture_output=True,
        env={"HOME": str(tmp_path), "PATH": str(programs)},
    )
    assert done.stderr == b""
    assert (done.stdout.strip() == PRESENT) is present
