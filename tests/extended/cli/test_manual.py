"""The man pages and the completions of shells, in share/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remote_tool.cli.manual import FOLDER, SHELLS, share

# Each is given its file, and prints the name of job-kill, of which nobody has typed the last two letters.
COMPLETE = {
    "bash": """
        source "$1" && COMP_WORDS=(remote-tool job-ki) COMP_CWORD=1 && _remote_tool_completion remote-tool
        echo "$COMPREPLY"
    """,
    "zsh": """
        zmodload zsh/zpty && zpty shell zsh -f -i
        zpty -w shell "fpath=(${1:h} \\$fpath); autoload -Uz compinit; compinit -u -D"
        zpty -n -w shell $'remote-tool job-ki\\t'
        zpty -r shell printed '*job-kill*' && echo job-kill
    """,
    "fish": """
        source $argv[1]; complete --do-complete 'remote-tool job-ki'
    """,
}


@pytest.mark.picked
def test_share_has_what_help_says_and_no_other_file() -> None:
    written = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert written == share(), "run: make reference"


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_groff_has_nothing_to_say_about_the_man_pages() -> None:
    pages = sorted((FOLDER / "man").rglob("*.[15]"))
    shown = subprocess.run(["groff", "-man", "-Kutf8", "-ww", "-z", *pages], check=True, capture_output=True, text=True)
    assert (shown.stdout, shown.stderr) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_completes_the_name_of_a_command(shell: str, own_home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    script = own_home / "complete"
    script.write_text(COMPLETE[shell])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown = subprocess.run(
        [shell, script, FOLDER / SHELLS[shell]],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": path},
    )
    assert shown.stdout.split()[:1] == ["job-kill"], shown.stderr
