"""Run tests as an ordinary user: ``python tools/test_as_user.py [OPTION…]``, with options for pytest.

Root makes a user for it, copies the project to a folder of that user, and removes both after; an ordinary user just
runs them. Where Python or its packages are in a folder that only root may enter, the user sees them through mounts that
nobody else has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = Path(sys.prefix)
IN_PRIVATE = "REMOTE_TOOL_TESTS_IN_PRIVATE_MOUNTS"


def main() -> int:
    """Return pytest's exit status; 0 where no user can be made, after saying so."""
    if os.geteuid() != 0:
        return run_tests(ROOT, [])
    missing = [program for program in ("useradd", "userdel", "setpriv", "unshare") if shutil.which(program) is None]
    if missing:
        print(f"no tests as an ordinary user: {', '.join(missing)} is missing; apt-get install passwd util-linux")
        return 0
    if IN_PRIVATE not in os.environ:
        # What is mounted here ends with this process.
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
            command = command[4:]
        return subprocess.run(command, check=False, env={**os.environ, IN_PRIVATE: "1"}).returncode
    return run_as_new_user()


def run_as_new_user() -> int:
    name = f"rtu{os.getpid()}"
    # Short: paths of sockets are bounded.
    home = Path(tempfile.mkdtemp(prefix="rtu-", dir="/tmp"))
    try:
        subprocess.run(["useradd", "--no-create-home", "--home-dir", home, "--shell", "/bin/bash", name], check=True)
        # Of these, what other programs write meanwhile comes and goes.
        caches = ("__pycache__", ".*_cache", ".hypothesis", ".coverage*")
        ignored = shutil.ignore_patterns(".git", ".venv", ".cache", *caches)
        shutil.copytree(ROOT, home / "project", ignore=ignored, symlinks=True)
        subprocess.run(["chown", "-R", f"{name}:", home], check=True)
        as_user = ["setpriv", "--reuid", name, "--regid", name, "--init-groups", "--"]
        for folder in (Path(sys.base_prefix), ENVIRONMENT, ROOT):
            let_in(as_user, folder)
        if not can_enter(as_user, Path(sys.executable)):
            print(f"no tests as an ordinary user: {sys.executable} cannot be shown to one here")
            return 0
        variables = {"HOME": str(home), "USER": name, "LOGNAME": name, "TMPDIR": str(home)}
        status = run_tests(home / "project", as_user, f"--basetemp={home}/t", **variables)
        # All that the tests have left, and nothing else, is this user's.
        subprocess.run([*as_user, "sh", "-c", "kill -9 -1"], check=False, stderr=subprocess.DEVNULL)
        return status
    finally:
        subprocess.run(["userdel", "--force", name], check=False)
        shutil.rmtree(home, ignore_errors=True)


def can_enter(as_user: list[str], path: Path) -> bool:
    return subprocess.run([*as_user, "test", "-x", path.resolve()], check=False).returncode == 0


def let_in(as_user: list[str], folder: Path) -> None:
    """Show a folder to the user at its own path: an empty folder hides the closed one above it, for us alone."""
    if can_enter(as_user, folder):
        return
    closed = next(each for each in [*reversed(folder.parents), folder] if not can_enter(as_user, each))
    shown = tempfile.mkdtemp(prefix="rtu-", dir="/run")
    for command in (
        ["mount", "--bind", folder, shown],
        ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", closed],
        ["mkdir", "-p", folder],
        ["mount", "--bind", shown, folder],
        ["umount", shown],
        ["rmdir", shown],
    ):
        if subprocess.run(command, check=False).returncode:
            return


def run_tests(project: Path, before: list[str], *options: str, **variables: str) -> int:
    command = [*before, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *sys.argv[1:]]
    known = {name: value for name, value in os.environ.items() if name != IN_PRIVATE}
    return subprocess.run(command, check=False, cwd=project, env={**known, **variables}).returncode


if __name__ == "__main__":
    sys.exit(main())
