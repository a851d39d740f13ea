"""Figures come from every worker, and the end of the run shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_figures_of_all_workers_are_shown_once_at_the_end(tmp_path: Path) -> None:
    inner = tmp_path / "test_inner.py"
    inner.write_text(
        "import pytest\n"
        "from tests.figures import record_case, record_figure\n"
        "@pytest.mark.parametrize('number', range(20))\n"
        "def test_it(number):\n"
        "    record_figure('many', number)\n"
        "    record_case('sweep')\n"
        "    if number < 2:\n"
        "        record_figure('cases', f'{number + 1}.5 s')\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    command += ["-p", "no:cacheprovider", "-p", "tests.conftest", "-n", "2", "-q", str(inner)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("many")] == ["many   20 values, 0 .. 19, half below 10"]
    assert [line for line in lines if line.startswith("sweep")] == ["sweep  20 cases held"]
    (cases,) = [line for line in lines if line.startswith("cases")]
    assert sorted(cases.removeprefix("cases  ").split(", ")) == ["1.5 s", "2.5 s"]
