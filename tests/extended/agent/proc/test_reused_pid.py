"""A pid that somebody else has got, in a pid namespace where we say which one the kernel gives next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.extended.agent.conftest import PretendServer

# The first process of the namespace: it starts a job, kills what the parameter says, and gives the pids away.
INIT = r"""
import json, os, signal, subprocess, sys, time

python, entry, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def call(op, **fields):
    line = json.dumps({"nonce": "0" * 16, "op": op, **given["folders"], **fields}).encode() + b"\n"
    answer = subprocess.run([python, "-I", "-S", entry], input=line, stdout=subprocess.PIPE).stdout
    lengths, _, rest = answer.partition(b"\n")
    return json.loads(rest[:int(lengths.split()[1])])

def start_time(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])

def take(pid):
    # What runs as the job did, but is another: with its pid, and no mark of it.
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    victim = subprocess.Popen(["sleep", "600"], env={}, stdout=subprocess.DEVNULL)
    assert victim.pid == pid, f"the pid {pid} was not free, this is {victim.pid}"
    return victim

job = given["job"]
started = call("start", jobs=[job])["jobs"][0]["started"]
processes = {name: started[name] for name in ("supervisor", "command")}
if given["ends"]:
    os.kill(processes["command"]["pid"], signal.SIGTERM)
else:
    for name in ("supervisor", "command"):
        os.kill(processes[name]["pid"], signal.SIGKILL)
while any(os.path.exists(f"/proc/{process['pid']}") for process in processes.values()):
    # Orphans are the first process's to bury.
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    time.sleep(0.02)
victims = {name: take(process["pid"]) for name, process in processes.items()}
if given["ends"]:
    # As when the command did not die at once: then it is looked for, and signalled, after the end as well.
    with open(given["ended"]) as file:
        ended = json.load(file)
    with open(given["ended"], "w") as file:
        json.dump({**ended, "unkillable": [processes["command"]["pid"]]}, file)
told = {
    "state": call("status", ids=[job["id"]])["jobs"][0],
    "stops": [call("stop", ids=[job["id"]], signal=name, grace=0.0)["jobs"][0] for name in ("SIGTERM", "SIGKILL")],
    "younger": {name: start_time(processes[name]["pid"]) > processes[name]["start_time"] for name in processes},
    "alive": {name: victim.poll() is None for name, victim in victims.items()},
}
print(json.dumps(told))
"""
# As a job: what it leaves behind gets its pid, and an exit status of its own, while the supervisor waits for the rest.
HEIR = r"""
import os, sys, time

pid = os.getpid()
if os.fork():
    os._exit(3)
os.setsid()
while os.path.exists(f"/proc/{pid}"):
    time.sleep(0.005)
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(pid - 1))
heir = os.fork()
if heir == 0:
    os._exit(7)
with open("heir", "w") as file:
    file.write(f"{pid} {heir}")
"""
WAIT = r"""
import json, os, subprocess, sys, time

python, entry, line, ended = sys.argv[1:]
subprocess.run([python, "-I", "-S", entry], input=line.encode() + b"\n", stdout=subprocess.DEVNULL)
deadline = time.monotonic() + 40
while not os.path.exists(ended) and time.monotonic() < deadline:
    time.sleep(0.01)
"""
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture
def namespace() -> list[str]:
    """Return the command that runs another as the first process of a pid namespace."""
    may_choose = 'echo 100 > /proc/sys/kernel/ns_last_pid && test "$(sh -c "echo \\$\\$")" = 101'
    tried = subprocess.run([*UNSHARE, "sh", "-c", may_choose], check=False, capture_output=True)
    if tried.returncode != 0:
        pytest.skip("choosing the next pid of a namespace is not allowed here")
    return UNSHARE


@pytest.mark.row(4)
@pytest.mark.slow
@pytest.mark.parametrize("ends", [False, True], ids=["its supervisor was killed", "it has ended"])
def test_processes_that_reuse_a_jobs_pids_are_not_signalled(
    server: PretendServer, namespace: list[str], ends: bool
) -> None:
    job = server.new_job("exec sleep 600")
    ended = str(server.jobs / job["id"] / "ended.json")
    given = json.dumps({"folders": server.folders, "job": job, "ends": ends, "ended": ended})
    ran = subprocess.run(
        [*namespace, sys.executable, "-c", INIT, server.python, str(server.entry), given],
        check=False,
        capture_output=True,
        timeout=300,
        env={"PATH": os.environ["PATH"], "HOME": str(server.home), "REMOTE_TOOL_SUPERVISOR": "1"},
    )
    assert ran.returncode == 0, ran.stderr.decode()
    told: dict[str, Any] = json.loads(ran.stdout)
    assert told["younger"] == {"supervisor": True, "command": True}
    assert told["alive"] == {"supervisor": True, "command": True}
    state = told["state"]
    assert state["state"] == ("failed" if ends else "lost")
    assert not state["alive"]
    if not ends:
        assert state["reason"] == "its processes disappeared without a record"
    assert [(stop["already"], stop["left"]) for stop in told["stops"]] == [(True, [])] * 2


@pytest.mark.row(4, 6)
def test_an_orphan_with_the_pid_of_the_command_does_not_change_how_that_ended(
    server: PretendServer, namespace: list[str]
) -> None:
    (server.project / "heir.py").write_text(HEIR)
    job = server.new_job("exec python -S heir.py")
    line = json.dumps({"nonce": "0" * 16, "op": "start", **server.folders, "jobs": [job]})
    ended = server.jobs / job["id"] / "ended.json"
    subprocess.run(
        [*namespace, sys.executable, "-c", WAIT, server.python, str(server.entry), line, str(ended)],
        check=True,
        timeout=300,
        env={"PATH": os.environ["PATH"], "HOME": str(server.home), "REMOTE_TOOL_SUPERVISOR": "1"},
    )
    pid, heir = (server.project / "heir").read_text().split()
    assert pid == heir
    assert server.record(job["id"], "ended")["exit_code"] == 3
