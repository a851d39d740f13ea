"""Submit a batch job: a program for a login node, which gets a request on stdin and prints its answer as JSON.

It runs in our folder there, with our own Python, 3.8 or newer. A request that is repeated submits nothing twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

FOLDER = "slurm"
PROGRAMS = ("/usr/local/bin", "/usr/local/slurm/bin", "/opt/slurm/bin")
# Who holds the lock may wait for sbatch.
SECONDS, PATIENCE, ABANDONED_SECONDS = 60.0, 75.0, 600.0
# The environment of the login that has no meaning, or another one, on a node.
LEFT_OUT = ("SSH_", "XDG_", "REMOTE_TOOL_", "SLURM_", "SBATCH_")
LEFT_OUT_NAMES = {"_", "PWD", "OLDPWD", "SHLVL", "TERM", "MAIL", "DISPLAY", "HOSTNAME"}
# Slurm stores the environment that it is told to pass on, so that is only what a shell needs.
EXPORTED = "HOME,PATH,USER,LOGNAME,SHELL,LANG"
BATCH = """#!/bin/sh
cpus=${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}
exec srun $cpus --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --mpi=none --export=ALL ../../python -I -S step.py %s
"""


class RefusedError(Exception):
    """Nothing was submitted; the message says why."""


def main() -> None:
    """Carry out the request."""
    request = json.load(sys.stdin)
    request["umask"] = os.umask(0o077)
    os.environ.pop("SLURM_CLUSTERS", None)
    os.environ["PATH"] = ":".join([os.environ.get("PATH", "/usr/bin:/bin"), *PROGRAMS])
    try:
        if request.get("only_remove"):
            remove_old(Path.home() / request["jobs_folder"])
            answer = {}
        else:
            answer = {"reference": submit(request)}
    except RefusedError as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"refused": f"{error.filename or 'the folder of submissions'}: {error.strerror}"}
    except subprocess.TimeoutExpired:
        answer = {"unknown": f"sbatch did not answer within {SECONDS:.0f} s"}
    sys.stdout.write("\0" + json.dumps(answer))


def submit(request: dict[str, Any]) -> str:
    """Submit the jobs of a request, unless that was done before; return the id of the batch job."""
    jobs = Path.home() / request["jobs_folder"]
    remove_old(jobs)
    folder = Path(FOLDER, request["name"])
    is_new = store(folder, request)
    with (folder / "lock").open("a") as lock:
        wait_for_lock(lock.fileno())
        reference = read(folder / "id")
        if not reference and not is_new:
            reference = find_by_comment(request["name"], "-t", "all")
        if not reference:
            reference = submit_new(folder, jobs, request)
        write(folder / "id", reference)
        for number, job in enumerate(read(folder / "ids").split()):
            tell(jobs / job, job, f"{reference}_{number}" if request["array"] else reference)
    return reference


def submit_new(folder: Path, jobs: Path, request: dict[str, Any]) -> str:
    """Submit the batch job; if Slurm refuses it, nothing of it stays here."""
    try:
        return call_sbatch(folder, [*request["words"], *dependencies(jobs, request)], request["array"])
    except RefusedError:
        # The answer may be that of a controller which was busy, and has queued it.
        with suppress(RefusedError):
            reference = find_by_comment(request["name"])
            if reference:
                return reference
        shutil.rmtree(folder, ignore_errors=True)
        raise


def store(folder: Path, request: dict[str, Any]) -> bool:
    """Write the files that the batch job needs; return whether they were not there."""
    if folder.is_dir():
        return False
    new = folder.with_name(f"{folder.name}.new-{os.urandom(4).hex()}")
    new.mkdir(parents=True)
    login = {name: value for name, value in os.environ.items() if is_of_login(name)}
    write(new / "jobs.json", json.dumps({**request["request"], "login": login, "umask": request["umask"]}))
    write(new / "step.py", request["step"])
    write(new / "batch", BATCH % request["agent"])
    write(new / "ids", "".join(job + "\n" for job in request["jobs"]))
    try:
        new.rename(folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not folder.is_dir():
            raise
        return False
    return True


def is_of_login(name: str) -> bool:
    """Return whether a variable of the login is passed on to jobs."""
    return name not in LEFT_OUT_NAMES and not name.startswith(LEFT_OUT)


def wait_for_lock(file: int) -> None:
    """Wait until no other program submits the same jobs."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RefusedError("another program is submitting these jobs") from None
            time.sleep(0.1)
        except OSError:
            return  # a file system without locks
        else:
            return


def call_sbatch(folder: Path, words: list[str], array: str) -> str:
    """Submit the batch job, and return its id."""
    name = "output-%a" if array else "output"
    ours = ["--parsable", "--open-mode=append", "--output=" + name, "--export=" + EXPORTED]
    if array:
        ours.append("--array=" + array)
    status, output, errors = run(["sbatch", *ours, *words, "batch"], folder)
    # On some clusters, the name of the cluster follows.
    reference = output.strip().split("\n")[-1].split(";")[0]
    if status or not reference.isdigit():
        raise RefusedError(f"sbatch: {said(errors) or f'it ended with status {status}'}")
    return reference


def dependencies(jobs: Path, request: dict[str, Any]) -> list[str]:
    """Return the options with which the batch job waits for earlier jobs."""
    waited = []
    for job in request["after"]:
        ended, held = (read_json(jobs / job / name) for name in ("ended.json", "held.json"))
        has_succeeded = ended.get("exit_code") == 0 and not ended.get("killed")
        if ended and not has_succeeded and not request["after_any"]:
            raise RefusedError("an earlier job has not succeeded, so it would never start")
        if not ended and not held.get("reference"):
            raise RefusedError("an earlier job is not known to Slurm")
        if not ended:
            waited.append(held["reference"])
    kind = "afterany" if request["after_any"] else "afterok"
    return ["--dependency={}:{}".format(kind, ":".join(waited)), "--kill-on-invalid-dep=yes"] if waited else []


def tell(folder: Path, job: str, reference: str) -> None:
    """Let a job's folder say which batch job starts it."""
    record = {"schema": 1, "id": job, "by": "slurm", "reference": reference, "reason": "Slurm job " + reference}
    with suppress(FileNotFoundError):
        write(folder / "held.json", json.dumps(record) + "\n")


def find_by_comment(name: str, *states: str) -> str:
    """Return the id of a batch job that was submitted before, although nothing here says so; empty without one."""
    for reference, comment in listed(*states):
        if comment.partition(" ")[0] == name:
            return reference
    return ""


def listed(*states: str) -> list[tuple[str, str]]:
    """Return the ids and the comments of this user's batch jobs, by default of those that are not over."""
    # %F: a task of an array that has begun has another id besides.
    status, output, errors = run(["squeue", "-h", "-a", "-u", str(os.getuid()), *states, "-o", "%F %k"], Path())
    if status:
        raise RefusedError(f"squeue: {said(errors)}")
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in output.split("\n") if line]


def remove_old(jobs: Path) -> None:
    """Remove what was written for batch jobs that are over: variables of their jobs are in it."""
    for path in paths_in(FOLDER):
        if ".new-" in path.name and time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
    over = [path for path in paths_in(FOLDER) if ".new-" not in path.name and is_over(jobs, path)]
    if over:
        known = {comment.partition(" ")[0] for _, comment in listed()}
        for path in over:
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)


def is_over(jobs: Path, folder: Path) -> bool:
    """Return whether each of its jobs has ended, or is gone."""
    ids = read(folder / "ids").split()
    return all(not (jobs / job).is_dir() or (jobs / job / "ended.json").exists() for job in ids)


def run(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a program of Slurm; return its exit status, stdout and stderr."""
    try:
        done = subprocess.run(
            words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise RefusedError(f"{words[0]} is not found; it must be on the PATH of a login") from None
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def said(errors: str) -> str:
    """Return the message of a program of Slurm without its own name."""
    lines = [line.split(": error: ", 1)[-1].strip() for line in errors.split("\n")]
    return "; ".join(line for line in lines if line)[:1000]


def paths_in(folder: str) -> list[Path]:
    """Return what is in a folder; nothing if it does not exist."""
    try:
        return list(Path(folder).iterdir())
    except FileNotFoundError:
        return []


def read(path: Path) -> str:
    """Return a small file; empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """Return a record; empty if it does not exist."""
    return dict(json.loads(read(path) or "{}"))


def write(path: Path, text: str) -> None:
    """Write a file as a whole."""
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


if __name__ == "__main__":
    main()
