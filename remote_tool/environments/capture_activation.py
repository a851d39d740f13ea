"""Record how to activate a prefix; runs on the server with the environment's own interpreter.

The module is sent as text, and has only the standard library of Python 3.8. The record is written last, so its
existence means that the environment is finished.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# Variables that a shell sets for itself.
SHELL_OWN = {"_", "SHLVL", "PWD", "OLDPWD", "PS1", "PATH", "BASHOPTS", "SHELLOPTS"}
UNSET_IN_CONDA = "***unset***"

# The scripts may print, so only the answer goes to the original stdout.
SOURCE_ALL = """
exec 3>&1 1>&2
for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
    if [ -f "$script" ]; then . "$script"; fi
done
exec "$REMOTE_TOOL_PYTHON" -I -S -c "$REMOTE_TOOL_DUMP" 1>&3
"""
DUMP = "import json, os; print(json.dumps(dict(os.environ)))"


def capture(request: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an environment."""
    # The user's variables come with each command, and are not part of the environment.
    for name in os.environ.pop("REMOTE_TOOL_USERS_VARIABLES", "").split():
        os.environ.pop(name, None)
    prefix = request["prefix"]
    folder = home() / (prefix[1:].lstrip("/") if prefix == "~" or prefix.startswith("~/") else prefix)
    if (folder / "conda-meta").is_dir():
        variables, unset, path = of_conda(folder)
        path += path_of_conda(folder, request["tool"])
    elif (folder / "pyvenv.cfg").is_file():
        unset = ["PYTHONHOME", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"]
        variables, path = {"VIRTUAL_ENV": str(folder)}, [str(folder / "bin")]
    else:
        variables, unset, path = {}, ["PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"], [str(folder / "bin")]
    names = ("python", "python3")
    python = request["python"] or next(folder / "bin" / name for name in names if (folder / "bin" / name).exists())
    return {
        "schema": 1,
        "prefix": str(folder),
        "python": str(python),
        "version": platform.python_version(),
        "kind": request["kind"],
        "tool": request["tool"],
        "wish": request["wish"],
        "variables": variables,
        "unset": unset,
        "path": path,
    }


def home() -> Path:
    """Return ``$HOME``, even if the account has another home."""
    return Path(os.environ["HOME"])


def of_conda(folder: Path) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the changes of ``conda activate``: variables, removed variables, and folders on PATH."""
    before = {name: value for name, value in os.environ.items() if not name.startswith(("CONDA_", "_CE_"))}
    own = {"CONDA_PREFIX": str(folder), "CONDA_DEFAULT_ENV": str(folder), "CONDA_SHLVL": "1"}
    own.update(users_variables(folder))
    path = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)])
    after = source_scripts(folder, {**before, **own, "PATH": path})
    # The names of exported functions are accepted by bash only.
    changed = {
        name: value
        for name, value in after.items()
        if before.get(name) != value and name not in SHELL_OWN and name.isidentifier()
    }
    removed = sorted(name for name in before if name not in after and name not in SHELL_OWN)
    known = before.get("PATH", "").split(os.pathsep)
    added = [entry for entry in after.get("PATH", "").split(os.pathsep) if entry and entry not in known]
    return changed, ["PYTHONHOME", "VIRTUAL_ENV", *removed], added or [str(folder / "bin")]


def path_of_conda(folder: Path, tool: str) -> list[str]:
    """Return the folder that ``conda init`` adds to PATH, of the conda that created or contains the prefix."""
    bases = ([Path(tool).parents[1]] if tool else []) + [folder, *folder.resolve().parents[:2]]
    return [str(base / "condabin") for base in bases if (base / "condabin" / "conda").exists()][:1]


def users_variables(folder: Path) -> dict[str, str]:
    """Return the variables stored by ``conda env config vars set``."""
    try:
        state = json.loads((folder / "conda-meta" / "state").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: str(value) for name, value in state.get("env_vars", {}).items() if value != UNSET_IN_CONDA}


def source_scripts(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run the activation scripts of packages, many of which need bash, and return the environment after them."""
    if not any((folder / "etc" / "conda" / "activate.d").glob("*.sh")):
        return environment
    process = subprocess.run(
        [shutil.which("bash") or "/bin/sh", "-c", SOURCE_ALL],
        env={**environment, "REMOTE_TOOL_PYTHON": sys.executable, "REMOTE_TOOL_DUMP": DUMP},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if process.returncode != 0 or not process.stdout:
        sys.exit(f"refused: a script in {folder}/etc/conda/activate.d failed (status {process.returncode})")
    result = json.loads(process.stdout.decode(errors="surrogateescape"))
    return {name: value for name, value in result.items() if not name.startswith("REMOTE_TOOL_")}


def write(record: dict[str, Any], scripts: Path) -> None:
    """Put the link and the record into place atomically, the record last."""
    os.umask(0o077)
    scripts.mkdir(parents=True, exist_ok=True)
    link = scripts / "python.new"
    if link.is_symlink():
        link.unlink()
    link.symlink_to(record["python"])
    link.replace(scripts / "python")
    temporary = scripts / "activation.json.new"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(scripts / "activation.json")


def main() -> None:
    """Read the request in the argument, write the record, and print the Python version."""
    request = json.loads(sys.argv[1])
    record = capture(request)
    write(record, home() / request["scripts"])
    sys.stdout.write(f"Python {record['version']} in {record['prefix']}\n")


if __name__ == "__main__":
    main()
