"""Start a job on a node that Slurm has given it: a program that runs as the only task on each node of a batch job.

Our agent does what it does on any server: it starts a supervisor, which records how the job ends. This program stays
for as long, as Slurm ends what is left when it exits. Before a launch, the nodes find an address of the first one that
all others reach. It runs in the folder of its submission, with our own Python, 3.8 or newer.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

JOBS, SCRIPTS = "jobs.json", "../.."
# In commands and variables, these stand for what is known only on the node.
ADDRESS, PORT, OWN, INTERFACE = "@slurm-address@", "@slurm-port@", "@slurm-own-address@", "@slurm-interface@"
# The proxy of MPICH without its options, see remote_tool.launchers.mpi.
PROXY = "hydra_pmi_proxy '…'"
PLAIN = re.compile(r"[A-Za-z0-9._:/-]{1,200}")
# Of Slurm's own variables, those that programs ask for and torchrun does not take for its own.
KEPT = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT")
# Until all nodes are there, and until they have tried to reach the first.
GATHER_SECONDS, CONNECT_SECONDS = 300.0, 60.0
PAUSE = 0.5
# Slurm kills what is left some seconds after SIGTERM; supervisors need the last of them for their records.
RECORD_SECONDS, USUAL_KILL_WAIT = 8.0, 30.0
SUBREAPER = 36


# With a number in it, the port is chosen by the user.
PORT_FORM = re.compile(PORT.replace("port", r"port(?:-(\d{1,5}))?"))


class FailedError(Exception):
    """The job cannot start; the message says why."""


class Ending:
    """Slurm's request to end, by SIGTERM: when it came, and the job that is to know of it."""

    at: float | None = None
    folder: Path | None = None


def note_ending(*_: object) -> None:
    """Let the job's folder say that Slurm ends it, as it may begin it again, whatever the job makes of it."""
    if Ending.at is None:
        Ending.at = time.monotonic()
        mark_ending()


def mark_ending() -> None:
    """Write down that Slurm ends the job; a full disk must not end the job before its record is written."""
    if Ending.at is not None and Ending.folder is not None:
        held = Ending.folder / "held.json"
        with suppress(OSError):
            write(held, {**read_json(held), "ending": True})


def ignore(*_: object) -> None:
    """Do nothing at a signal that is meant for the job: Slurm sends it to all processes."""


def main() -> int:
    """Start the job of this task, stay until it has ended, and return its exit code."""
    signal.signal(signal.SIGTERM, note_ending)
    for each in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, ignore)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    request = read_json(Path(JOBS))
    if not request:
        sys.stderr.write("the jobs of this batch job have ended before it began\n")
        return 0
    agent = find_agent(sys.argv[1])
    for name, value in request["login"].items():
        os.environ.setdefault(name, value)
    number = int(os.environ.get("SLURM_ARRAY_TASK_ID") or os.environ["SLURM_PROCID"])
    job = request["jobs"][number]
    Ending.folder = folder = Path.home() / request["jobs_folder"] / job["id"]
    try:
        if request["meets"]:
            job = with_proxy(agent, request, meet(agent, request, job, number), number)
        started = start(agent, request, job)
    except FailedError as error:
        sys.stderr.write("{}: {}\n".format(job["id"], error))
        ask(agent, request, "settle", {"jobs": [{"id": job["id"], "reason": str(error), "failed": True}]})
        return finish(request, folder)
    if started:
        mark_ending()
        stay(folder)
    return finish(request, folder)


def chosen_port(port: int) -> str:
    """Return what stands for a port that the user chose."""
    return PORT.replace("port", f"port-{port}")


def find_agent(name: str) -> str:
    """Return the entry point of the agent of this version, or of the newest one if that was removed meanwhile."""
    found = [each for each in Path(SCRIPTS).resolve().glob("supervisor-*") if ".new" not in each.name]
    found.sort(key=lambda each: each.stat().st_mtime)
    if not found:
        raise SystemExit(f"no agent is left in {Path(SCRIPTS).resolve()}")
    folder = next((each for each in found if each.name == name), found[-1])
    sys.path.insert(0, str(folder))
    return str(folder / "run_control.py")


def start(agent: str, request: dict[str, Any], job: dict[str, Any]) -> bool:
    """Have the agent start the job; return whether it is ours to stay for."""
    own = {name: os.environ[name] for name in KEPT if os.environ.get(name)}
    job = {**job, "environment": {**own, **job["environment"]}}
    folder = Path.home() / request["jobs_folder"] / job["id"]
    held = read_json(folder / "held.json")
    reference = held.get("reference")
    if reference and reference != own_reference():
        Ending.folder = None
        sys.stderr.write(f"{job['id']}: Slurm job {reference} starts it\n")
        return False
    if held and not reference:
        # The login node may still be busy telling other jobs theirs.
        write(folder / "held.json", {**held, "reference": own_reference(), "reason": f"Slurm job {own_reference()}"})
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    fields = {**request["start"], "jobs": [job], "attempt": restarts + 1, "why": "requeued by Slurm"}
    answer = ask(agent, request, "start", fields)
    (entry,) = answer.get("jobs") or [{}]
    error = answer.get("error") or entry.get("error")
    if error:
        raise FailedError(error)
    return not entry.get("already")


def own_reference() -> str:
    """Return the id of this batch job, as its jobs know it."""
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def stay(folder: Path) -> None:
    """Wait until the job's supervisor has ended; pass on to it what its machine alone could not learn in time."""
    kill_wait = read_kill_wait()
    asked = b""
    told: dict[int, bool] = {}
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        supervisor = pid_of_supervisor(folder)
        if supervisor is None and not has_children():
            return
        if supervisor is not None and not Path(f"/proc/{supervisor}").exists():
            return
        # Reading alone may find on NFS what was there before.
        stop = read_bytes(folder / "stop.json") if folder / "stop.json" in folder.iterdir() else b""
        if supervisor is not None and stop != asked:
            asked = stop
            send(supervisor, signal.SIGUSR1)
        if Ending.at is not None and supervisor is not None:
            left = Ending.at + kill_wait - RECORD_SECONDS - time.monotonic()
            # Where Slurm signals only its own task, the supervisor learns of it from here.
            number = signal.SIGTERM if left > 0 else signal.SIGUSR2
            if not told.setdefault(number, False):
                told[number] = True
                send(supervisor, number)
        time.sleep(PAUSE)


def finish(request: dict[str, Any], folder: Path) -> int:
    """Remove what only these jobs needed when all have ended, and return the exit code of this one."""
    ended = read_json(folder / "ended.json")
    # After SIGTERM, Slurm may begin the job again.
    if Ending.at is None and all(has_ended(folder.with_name(job["id"])) for job in request["jobs"]):
        with suppress(FileNotFoundError):
            Path(JOBS).unlink()
    if ended.get("exit_code") == 0 and not ended.get("killed"):
        return 0
    return ended.get("exit_code") or 1


def has_ended(folder: Path) -> bool:
    """Return whether a job has a record of its end."""
    return (folder / "ended.json").exists()


def meet(agent: str, request: dict[str, Any], job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Find an address of the first node that every node reaches, and return the job with it."""
    count = len(request["jobs"])
    attempt = "meeting-{}-".format(os.environ.get("SLURM_RESTART_COUNT") or 0)
    write(Path(attempt + f"node-{rank}"), {"name": node_name()})
    names = [wait_for(attempt + f"node-{each}", GATHER_SECONDS)["name"] for each in range(count)]
    with listening(agent, request, attempt, rank):
        listen = wait_for(attempt + "listen", CONNECT_SECONDS)
        refuse(listen)
        reached = ask(agent, request, "connect", {**listen["probe"], "timeout": 5.0})
        refuse(reached)
        routes = {each["address"]: each for each in reached["results"] if each.get("ok")}
        write(Path(attempt + f"reached-{rank}"), {"addresses": sorted(routes)})
        if rank == 0:
            remove_proxies(Path.home() / request["jobs_folder"] / job["id"])
            choose(attempt, listen, names)
        chosen = wait_for(attempt + "chosen", CONNECT_SECONDS)
    refuse(chosen)
    route = routes[chosen["address"]]
    return placed(job, {**chosen, "names": names}, route)


@contextmanager
def listening(agent: str, request: dict[str, Any], attempt: str, rank: int) -> Iterator[None]:
    """On the first node, have the agent listen while the others try to reach it."""
    if rank:
        yield
        return
    secret, nonce = os.urandom(16).hex(), os.urandom(16).hex()
    with begin(agent, request) as process:
        assert process.stdin is not None
        process.stdin.write(line_of(request, "listen", {"port": request["port"], "secret": secret}, nonce))
        process.stdin.flush()
        answer = next(answers(process, nonce), {"error": "the first node cannot listen"})
        ports = [answer.get("port"), answer.get("watch_port")]
        probe = {"candidates": candidates(agent, request), "ports": ports, "secret": secret}
        write(Path(attempt + "listen"), {"probe": probe, "error": answer.get("error")})
        try:
            yield
        finally:
            # The ports are free again when the agent has ended.
            process.communicate()


def candidates(agent: str, request: dict[str, Any]) -> list[str]:
    """Return the addresses of this node, first the one by which Slurm knows it."""
    found = [each["address"] for each in ask(agent, request, "own_addresses", {})["addresses"]]
    with suppress(OSError):
        known = [each[4][0] for each in socket.getaddrinfo(node_name(), None, type=socket.SOCK_STREAM)]
        found = [*(each for each in known if each in found), *found]
    # Neither loopback nor an address that needs the name of an interface leads from another node to this one.
    return [each for each in dict.fromkeys(found) if not each.startswith(("127.", "::1", "fe80:"))] or ["127.0.0.1"]


def choose(attempt: str, listen: dict[str, Any], names: list[str]) -> None:
    """Write the first address that all nodes have reached, or who has reached none."""
    waits = (wait_for(attempt + f"reached-{rank}", CONNECT_SECONDS) for rank in range(len(names)))
    reached = [each["addresses"] for each in waits]
    tried = listen["probe"]["candidates"]
    port, watch_port = listen["probe"]["ports"]
    for address in tried:
        if all(address in each for each in reached):
            write(Path(attempt + "chosen"), {"address": address, "port": port, "watch_port": watch_port})
            return
    lost = [names[rank] for rank, each in enumerate(reached) if not each] or names[1:]
    text = "{} cannot reach {} at {}, port {}".format(", ".join(lost), names[0], ", ".join(tried), port)
    write(Path(attempt + "chosen"), {"error": text})


def placed(job: dict[str, Any], chosen: dict[str, Any], route: dict[str, Any]) -> dict[str, Any]:
    """Return a job with the addresses in its command, variables and watch."""
    address, interface = chosen["address"], route.get("interface") or ""
    bracketed = f"[{address}]" if ":" in address else address
    values = {
        ADDRESS + ":": bracketed + ":",
        ADDRESS: address,
        OWN: route.get("local_address") or address,
        INTERFACE: interface,
    }

    def replaced(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return PORT_FORM.sub(str(chosen["port"]), text)

    variables = job["environment"].items()
    environment = {name: replaced(value) for name, value in variables if value != INTERFACE or interface}
    job = {**job, "command": replaced(job["command"]), "environment": environment}
    if job.get("watch"):
        own = {"servers": chosen["names"], "address": address, "port": chosen["watch_port"]}
        job["watch"] = {**job["watch"], **own}
    return job


def with_proxy(agent: str, request: dict[str, Any], job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return a job of mpiexec with the options for its proxy, which the mpiexec of the first node prints."""
    if PROXY not in job["command"]:
        return job
    answer = ask(agent, request, "proxies", {"id": request["jobs"][0]["id"]})
    refuse(answer)
    lines = answer.get("proxies") or []
    words = lines[rank - 1].split()[1:] if len(lines) >= rank else []
    if not words or not all(PLAIN.fullmatch(word) for word in words):
        raise FailedError("the mpiexec of the first node printed no command for this one; it has to be that of MPICH")
    return {**job, "command": job["command"].replace(PROXY, " ".join([PROXY.partition(" ")[0], *words]))}


def remove_proxies(folder: Path) -> None:
    """Remove what the mpiexec of an attempt before has printed, which other nodes would take for that of this one."""
    for path in folder.glob("mpi-*"):
        path.unlink()


def refuse(answer: dict[str, Any]) -> None:
    """Raise the error of an answer."""
    if answer.get("error"):
        raise FailedError(answer["error"])


def node_name() -> str:
    """Return the name by which Slurm knows this node."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def ask(agent: str, request: dict[str, Any], operation: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Have the agent carry out an operation with one answer."""
    nonce = os.urandom(16).hex()
    with begin(agent, request) as process:
        assert process.stdin is not None
        process.stdin.write(line_of(request, operation, fields, nonce))
        process.stdin.flush()
        answer = next(answers(process, nonce), {"error": f"the agent gave no answer to {operation}"})
        process.communicate()
    return answer


def begin(agent: str, request: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the control program of the agent, with the umask of the login, which is that of commands."""
    environment = {**os.environ, "REMOTE_TOOL_SUPERVISOR": "1"}
    words = [sys.executable, "-I", "-S", agent]
    before = os.umask(request["umask"])
    try:
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    finally:
        os.umask(before)


def line_of(request: dict[str, Any], operation: str, fields: dict[str, Any], nonce: str) -> bytes:
    """Return a request line of the agent."""
    return json.dumps({**request["folders"], **fields, "op": operation, "nonce": nonce}).encode() + b"\n"


def answers(process: subprocess.Popen[bytes], nonce: str) -> Iterator[dict[str, Any]]:
    """Yield the answers of the agent, whose own module reads its frames."""
    from remote_tool.protocol.framing import FrameReader  # noqa: PLC0415 - the agent's folder is on the path only now

    assert process.stdout is not None
    reader = FrameReader(nonce)
    while True:
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            return
        for frame in reader.feed(data):
            yield dict(frame.header)


def pid_of_supervisor(folder: Path) -> int | None:
    """Return the process that watches over the job; None until it is known."""
    record = read_json(folder / "started.json")
    pid = record.get("supervisor", {}).get("pid")
    is_here = record.get("place", {}).get("hostname") == os.uname().nodename
    return int(pid) if pid and is_here else None


def has_children() -> bool:
    """Return whether any process of the job is left."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def read_kill_wait() -> float:
    """Return the seconds that Slurm waits between SIGTERM and SIGKILL."""
    with suppress(OSError, ValueError, IndexError, subprocess.SubprocessError):
        words = ["scontrol", "show", "config"]
        text = subprocess.check_output(words, stderr=subprocess.DEVNULL, timeout=20)
        return float(text.split(b"\nKillWait", 1)[1].split(b"=", 1)[1].split()[0])
    return USUAL_KILL_WAIT


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_for(name: str, seconds: float) -> dict[str, Any]:
    """Return what another node writes into the folder of the submission, on a disk that all nodes share."""
    deadline = time.monotonic() + seconds
    # Listing a folder on NFS asks its server; a name that was missing may be remembered as missing.
    while Path(name) not in Path().iterdir():
        if Ending.at is not None:
            raise FailedError("Slurm ended it before all of its nodes were there")
        if time.monotonic() > deadline:
            raise FailedError(f"another node of the job did not answer within {seconds:.0f} s ({name})")
        time.sleep(0.1)
    return dict(json.loads(Path(name).read_bytes()))


def write(path: Path, value: dict[str, Any]) -> None:
    """Write a file as a whole, for others."""
    new = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    new.write_text(json.dumps(value))
    new.rename(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return a record; empty if it does not exist."""
    return dict(json.loads(read_bytes(path) or b"{}"))


def read_bytes(path: Path) -> bytes:
    """Return a small file; empty if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
