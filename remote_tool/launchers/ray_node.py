"""One node of a Ray cluster: start Ray, run the program on the first node, and end all of it.

It runs on the servers, as text in an environment variable, with the Python of the environment: 3.9 or newer, as Ray.
It imports no Ray itself. The output of Ray is shown only when Ray fails, as it suggests commands such as ``ray stop``,
which would end the Ray of others as well.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO, NoReturn

# In the place of the program, the variable has its text.
SOURCE = "REMOTE_TOOL_RAY"
NAME = "rt-ray-"
# Ray lets everybody write into its folder, so it is in one of ours, which nobody else can enter.
OPEN_TO_ALL, ADDRESS, TEMPORARY = "ray", "ray/ray_current_cluster", "tmp"
# Until Ray answers, and until all nodes have joined: other machines may have to load Ray from a slow disk first.
START_SECONDS = 180.0
SILENT_SECONDS = 5.0
# Ray gives up after so long (Node.__init__ in ray/_private/node.py), which loading it from a slow disk may take. After
# a try that began later than that, the first node makes no other one, as its workers wait for START_SECONDS.
RAYS_OWN_LIMIT, LAST_TRY = 30.0, 90.0
# The supervisor kills all that is left 4 s after another node has failed, and this folder has to be gone by then.
STOP_SECONDS = 2.0
# It kills what is left 45 s after job-kill, unless told otherwise: so long the program may go on.
SAVE_SECONDS = 30.0
SETTLE_SECONDS = 5.0
# A folder that has nobody's lock yet may be one that is just being made.
NEW_SECONDS = 60.0
LOOK_SECONDS = 2.0
CONNECT_SECONDS = 2.0
# The port of the first node is closed so often in a row when its Ray has ended.
MOST_REFUSED = 3
# Between restarts of a worker, unless it had run for long.
LONGEST_PAUSE, LONG_RUN = 60.0, 600.0
MOST_SHOWN = 20
# Ray prints this when it runs on a node, and that before it names the process whose end has ended it.
RUNS, UNEXPECTED = b"Ray runtime started.", "Some Ray subprocesses exited unexpectedly"
# Lines of Ray's log that explain no end.
CHATTER = re.compile(r"\[state-dump\]|^\s*$|^- |^\[[-0-9:, ]+ I [0-9 ]+\]|\tINFO ")
SUBREAPER = 36
ENDING_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2")
# Neither Ray's workers (10002 to 19999) nor, as Linux is set up, connections to elsewhere use these.
PORTS = range(20000, 32768)
MOST_TRIES = 200
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")

# Waits until all nodes have joined. Its arguments are their number, and how many seconds to wait at most.
WAIT = """
import sys, time, ray
count, seconds = int(sys.argv[1]), float(sys.argv[2])
began, told = time.monotonic(), 0
ray.init(log_to_driver=False, logging_level="ERROR")
while True:
    alive = sum(1 for node in ray.nodes() if node["Alive"])
    waited = time.monotonic() - began
    if alive >= count:
        break
    if waited > seconds:
        sys.exit(f"remote-tool: only {alive} of {count} nodes have joined the Ray cluster within {seconds:.0f} s")
    if waited > 5 * (told + 1):
        told += 1
        if told in (1, 3, 6, 12, 24):
            print(f"remote-tool: {alive} of {count} nodes have joined the Ray cluster", file=sys.stderr, flush=True)
    time.sleep(0.2)
"""


class Stopped(SystemExit):
    """Somebody ends this node."""


class FailedError(Exception):
    """The node cannot go on; the message says why."""


def main() -> int:
    """Run this node until its program or its cluster ends, and return the exit code."""
    options = read_options(sys.argv[1:])
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for name in ENDING_SIGNALS:
        signal.signal(getattr(signal, name), stop)
    try:
        with own_folder(Path(options.folder)) as log:
            return run_first(options, log) if options.rank == 0 else run_worker(options, log)
    except FailedError as error:
        say(str(error))
        return 1


def read_options(words: list[str]) -> argparse.Namespace:
    """Read the options of this node."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--own-address", default="")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--shell-command", default="")
    return parser.parse_args(words)


def stop(number: int, _frame: Any) -> NoReturn:  # noqa: ANN401 - not looked at
    """End this node; Ray's processes have had the signal as well."""
    for name in ENDING_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    raise Stopped(128 + number)


def say(text: str) -> None:
    """Print a line of ours."""
    sys.stderr.write(f"remote-tool: {text}\n")
    sys.stderr.flush()


def run_first(options: argparse.Namespace, log: BinaryIO) -> int:
    """Start the first node; run the program, or stay until somebody ends the cluster."""
    dashboard = free_port()
    words = ["--head", "--port", str(options.master_port), "--temp-dir", f"{options.folder}/{OPEN_TO_ALL}"]
    if importlib.util.find_spec("grpc"):
        words += ["--ray-client-server-port", str(free_port())]
    words += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)]
    refuse_taken(options.master_port)
    say(f"starting a Ray cluster of {options.nodes} {'node' if options.nodes == 1 else 'nodes'}")
    last_try = time.monotonic() + LAST_TRY
    while True:
        may_try_again = time.monotonic() < last_try
        with running_ray([*words, *own_address(options)], options, log) as ray:
            if wait_for_start(ray, log, options, may_try_again=may_try_again):
                return run_cluster(options, ray, log, dashboard)
        say(f"Ray did not start on this node within the {RAYS_OWN_LIMIT:.0f} s that it allows; it starts again")


def run_cluster(options: argparse.Namespace, ray: subprocess.Popen[bytes], log: BinaryIO, dashboard: int) -> int:
    """Wait for the workers; run the program, or stay until somebody ends the cluster."""
    environment = {**os.environ, "RAY_ADDRESS": read_address(options)}
    wait_for_nodes(options, environment, ray, log)
    say("the Ray cluster is ready")
    # In a Slurm cluster, other commands reach only the login node.
    if "SLURM_JOB_ID" not in os.environ:
        explain_use(options, environment["RAY_ADDRESS"], dashboard)
    if options.shell_command:
        return run_program(options.shell_command, environment, ray, log)
    return explain_end(ray.wait(), log)


def explain_use(options: argparse.Namespace, address: str, dashboard: int) -> None:
    """Say how to reach the dashboard, and how programs other than that of the cluster use it."""
    token = f"{options.folder}/token"
    if can_connect("127.0.0.1", dashboard) and importlib.util.find_spec("aiohttp_cors"):
        server = os.environ.get("REMOTE_TOOL_SERVER", "NAME")
        say(f"its dashboard: remote-tool forward {dashboard} --server {server}; it asks for the token in {token}")
    if not options.shell_command:
        variables = f"RAY_ADDRESS={address} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token}"
        say(f"for a program on this server: export {variables}")


def run_program(command: str, environment: dict[str, str], ray: subprocess.Popen[bytes], log: BinaryIO) -> int:
    """Run the program of the cluster; return its exit code, or 1 if Ray ends before it."""
    shell = shutil.which("bash") or "/bin/sh"
    program = subprocess.Popen([shell, "-c", command], env=environment)
    try:
        while program.poll() is None:
            if ray.poll() is not None:
                return explain_end(ray.returncode, log)
            wait_a_little(program)
    except Stopped:
        # It has had the signal, and may still save something.
        wait_a_little(program, SAVE_SECONDS)
        raise
    finally:
        end(program)
        end_children(SETTLE_SECONDS, besides=ray.pid)
    # As a shell has it.
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def run_worker(options: argparse.Namespace, log: BinaryIO) -> int:
    """Keep a worker in the cluster until the cluster ends; return 1 if the worker ends before."""
    where = join(options.master_addr, options.master_port)
    begin, pause, has_left = time.monotonic(), 1.0, False
    while True:
        if not has_left:
            wait_for_first(options)
        began = time.monotonic()
        with running_ray(["--address", where, *own_address(options)], options, log) as ray:
            if has_cluster_ended(ray, options, log, has_left=has_left):
                return 0
            explain_end(ray.returncode, log)
            has_joined = runs(log)
        has_left = has_left or has_joined
        # The first node waits for so long until all have joined.
        waits = not has_left and time.monotonic() - begin < START_SECONDS
        if not options.restart and not waits:
            return 1
        pause = 1.0 if time.monotonic() - began > LONG_RUN else min(2 * pause, LONGEST_PAUSE)
        what = "left the Ray cluster; it joins again" if has_left else "has not joined the Ray cluster; it tries again"
        say(f"this node {what} in {pause:.0f} s")
        time.sleep(pause)
        if has_left and is_refused(options):
            return 0


def runs(log: BinaryIO) -> bool:
    """Return whether Ray has joined the cluster."""
    # Ray itself writes where this file was read to last.
    return RUNS in os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0)


def has_cluster_ended(
    ray: subprocess.Popen[bytes], options: argparse.Namespace, log: BinaryIO, *, has_left: bool
) -> bool:
    """Wait until Ray ends here, or on the first node; return whether it was the first node.

    No cluster ends before all have joined it, so until this node has, the first one only starts again.
    """
    refused, has_joined = 0, False
    while ray.poll() is None:
        if not has_joined and runs(log):
            has_joined = True
            if has_left:
                say("this node has joined the Ray cluster again")
        refused = refused + 1 if is_refused(options) else 0
        if refused >= MOST_REFUSED and (has_left or has_joined):
            return True
        wait_a_little(ray, LOOK_SECONDS if not refused else LOOK_SECONDS / 4)
    # It may have ended because of the first one.
    return (has_left or runs(log)) and is_refused(options)


def is_refused(options: argparse.Namespace) -> bool:
    """Return whether the first node is there, and its Ray is not."""
    try:
        socket.create_connection((options.master_addr, options.master_port), CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        # Supervisors watch over machines that are lost.
        return False
    return False


@contextlib.contextmanager
def running_ray(words: list[str], options: argparse.Namespace, log: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    """Run Ray's part of this node, and end it."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--log-color", "false"]
    command += ["--num-cpus", str(count_cpus()), "--dashboard-agent-listen-port", str(free_port())]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is not None:
        command += ["--num-gpus", str(count_gpus(gpus))]
    log.seek(0)
    log.truncate()
    # Nobody has to take over what runs here when all of the cluster ends.
    environment = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", **os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    for name in ("RAY_ADDRESS", "RAY_REDIS_ADDRESS"):
        # They lead to another cluster.
        environment.pop(name, None)
    # What Ray's processes leave there goes with the rest.
    environment.setdefault("TMPDIR", f"{options.folder}/{TEMPORARY}")
    ray = subprocess.Popen([*command, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        yield ray
    except Stopped:
        # It has had the signal: another one would interrupt its end.
        wait_a_little(ray, STOP_SECONDS)
        ray.kill()
        raise
    finally:
        end(ray)
        # They are Ray's, whose agents look for the end of Ray by themselves.
        end_children(0.0)


def count_cpus() -> int:
    """Return how many cores this node may use: those of its affinity, less what a container takes away."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = CPU_LIMIT.read_text(encoding="ascii").split()
        # A quota of "max" is no number.
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def count_gpus(listed: str) -> int:
    """Return how many GPUs a list gives: CUDA uses those before -1, and Slurm has a word for none."""
    names = [name.strip() for name in f"{listed},-1".replace("NoDevFiles", "-1").split(",")]
    return len(list(filter(None, names[: names.index("-1")])))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process."""
    if process.poll() is None:
        process.terminate()
        wait_a_little(process, STOP_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()


def end_children(grace: float, besides: int = 0) -> None:
    """End the processes that others have left to this one: SIGTERM, so many seconds, SIGKILL."""
    asked: set[int] = set()
    began = time.monotonic()
    while time.monotonic() - began < grace + STOP_SECONDS:
        left = [pid for pid in children() if pid != besides]
        if not left:
            return
        has_grace = time.monotonic() - began < grace
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if not has_grace or pid not in asked:
                    os.kill(pid, signal.SIGTERM if has_grace else signal.SIGKILL)
                    asked.add(pid)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)


def children() -> list[int]:
    """Return the processes whose parent is this one, also those that wait to be reaped."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(pid) for pid in text.split()]


def wait_for_start(
    ray: subprocess.Popen[bytes], log: BinaryIO, options: argparse.Namespace, *, may_try_again: bool
) -> bool:
    """Wait until Ray has written its address; return False if it ended because that took too long for it."""
    began = time.monotonic()
    told = False
    while not read_address(options):
        waited = time.monotonic() - began
        if may_try_again and waited > RAYS_OWN_LIMIT and ray.poll() is not None:
            return False
        refuse_end(ray, log)
        if waited > START_SECONDS:
            show_log(log)
            raise FailedError(f"Ray did not start within {START_SECONDS:.0f} s")
        if waited > SILENT_SECONDS and not told:
            told = True
            say("Ray is starting on this node")
        time.sleep(0.1)
    return True


def refuse_end(ray: subprocess.Popen[bytes], log: BinaryIO) -> None:
    """Refuse to go on without Ray."""
    if ray.poll() is not None:
        show_log(log)
        raise FailedError(f"Ray ended with exit code {ray.returncode} before its cluster was ready")


def read_address(options: argparse.Namespace) -> str:
    """Return the address of the cluster, as Ray has it: alone on a machine, Ray chooses it; empty until it has."""
    try:
        return Path(options.folder, ADDRESS).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def wait_for_nodes(
    options: argparse.Namespace, environment: dict[str, str], ray: subprocess.Popen[bytes], log: BinaryIO
) -> None:
    """Wait until all nodes have joined."""
    words = [sys.executable, "-c", WAIT, str(options.nodes), str(START_SECONDS)]
    waiting = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log)
    try:
        while waiting.poll() is None:
            refuse_end(ray, log)
            wait_a_little(waiting)
    finally:
        end(waiting)
    if waiting.returncode:
        raise FailedError("the Ray cluster is not complete")


def wait_for_first(options: argparse.Namespace) -> None:
    """Wait until the first node answers."""
    began = time.monotonic()
    told = False
    while not can_connect(options.master_addr, options.master_port):
        waited = time.monotonic() - began
        where = join(options.master_addr, options.master_port)
        if waited > START_SECONDS:
            raise FailedError(f"the first node does not answer at {where}")
        if waited > SILENT_SECONDS and not told:
            told = True
            say(f"waiting for the first node at {where}")
        time.sleep(0.3)


def can_connect(address: str, port: int) -> bool:
    """Return whether something listens there."""
    try:
        socket.create_connection((address, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def explain_end(status: int, log: BinaryIO) -> int:
    """Say that Ray ended by itself, with what it printed; return 1."""
    show_log(log)
    say(f"Ray ended on this node with exit code {status}")
    return 1


def show_log(log: BinaryIO) -> None:
    """Print the end of what Ray has printed."""
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if not CHATTER.search(line)]
    reasons = [number for number, line in enumerate(lines) if UNEXPECTED in line]
    shown = lines[reasons[0] :][:MOST_SHOWN] if reasons else lines[-MOST_SHOWN:]
    sys.stderr.write("".join(line + "\n" for line in shown))
    sys.stderr.flush()


def wait_a_little(process: subprocess.Popen[bytes], seconds: float = LOOK_SECONDS / 4) -> None:
    """Wait until a process ends, or for some seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def own_address(options: argparse.Namespace) -> list[str]:
    """Return Ray's option for the address of this node."""
    return ["--node-ip-address", options.own_address] if options.own_address and options.nodes > 1 else []


def join(address: str, port: int) -> str:
    """Return an address with its port."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def free_port() -> int:
    """Return a free port: Ray is told of it seconds before it listens there."""
    for _ in range(MOST_TRIES):
        port = random.choice(PORTS)  # noqa: S311 - it is no secret
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", port))
            return port
    raise FailedError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def refuse_taken(port: int) -> None:
    """Refuse a port that another program took after the launch was planned."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            # The supervisor reads this form of it.
            taken = f"Ray failed to listen on any local network address. port: {port}, EADDRINUSE"
            raise FailedError(f"{taken}: {error.strerror}") from error


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[BinaryIO]:
    """Make the folder of this node; yield the file for Ray's output there, and remove all of it in the end.

    Ray's sockets need a short path on a local disk.
    """
    for each in path.parent.glob(NAME + "*"):
        remove_unused(each, NEW_SECONDS if each != path else 0.0)
    try:
        path.mkdir(0o700)
    except OSError as error:
        raise FailedError(f"{path}: {error.strerror}") from error
    try:
        with Path(path, "lock").open("wb") as lock, Path(path, "start.log").open("w+b") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(path, TEMPORARY).mkdir()
            Path(path, "token").touch(0o600)
            Path(path, "token").write_text(os.environ["RAY_AUTH_TOKEN"], encoding="ascii")
            yield log
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_unused(path: Path, age: float) -> None:
    """Remove the folder of a node of ours that was killed: nobody has its lock, and it is so many seconds old."""
    with contextlib.suppress(OSError):
        if path.lstat().st_uid == os.getuid() and time.time() - path.lstat().st_mtime >= age:
            with Path(path, "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
