"""A configuration that is nested too deeply."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.row(114)
def test_deep_nesting_does_not_end_the_program() -> None:
    """The composer of libyaml calls itself: without our bound the whole program dies of a full stack."""
    code = (
        "from pathlib import Path\n"
        "from remote_tool.config.loading import parse\n"
        "from remote_tool.errors import ConfigError\n"
        "for text in (b'[' * 500_000, b'- ' * 500_000, b'? ' * 300_000):\n"
        "    try: parse(text, Path('/a/b'), Path('/a'))\n"
        "    except ConfigError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * 3), done.stderr
