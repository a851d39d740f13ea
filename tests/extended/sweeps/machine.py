"""A server that can be rebooted and whose next pid can be chosen: sshd in namespaces of processes and mounts."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sshd import SSHD, TestServer, free_low_port

if TYPE_CHECKING:
    from pathlib import Path

UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# The first process: it buries orphans, and does what is asked for on a line of stdin.
INIT = r"""
import json, os, select, subprocess, sys

subprocess.run(["mount", "--bind", sys.argv[1], "/proc/sys/kernel/random/boot_id"], check=True)
listener = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)

def bury():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

def look():
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue
        mark = [each.partition(b"=")[2].decode() for each in variables if each.startswith(b"REMOTE_TOOL_JOB_ID=")]
        if fields[0] != "Z":
            found[int(name)] = [int(fields[19]), mark[0] if mark else ""]
    return found

def take(pid):
    if os.path.exists(f"/proc/{pid}"):
        return False
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    got = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    return got == pid

def drop():
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/comm") as file:
                serves = file.read().startswith("sshd") and pid != listener
            if serves:
                os.kill(pid, 9)
        except OSError:
            continue

while True:
    bury()
    if select.select([0], [], [], 0.02)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        what, *values = json.loads(line)
        answer = {"look": look, "take": take, "kill": os.kill, "drop": drop}[what](*values)
        print(json.dumps(answer), flush=True)
"""


class Seen(NamedTuple):
    """A living process; ``mark`` is the job in its environment."""

    start_time: int
    mark: str


def missing() -> str:
    """Return why there can be no such machine here; empty when there can."""
    check = f"mount --bind /dev/null {BOOT_ID} && echo 300 > /proc/sys/kernel/ns_last_pid"
    tried = subprocess.run([*UNSHARE, "sh", "-c", check], check=False, capture_output=True)
    return "" if tried.returncode == 0 else "namespaces with a boot id and pids of their own are not allowed here"


class Machine(TestServer):
    """Its home stays when it is rebooted; its processes do not."""

    __test__ = False

    def __init__(self, folder: Path, key: Path) -> None:
        # Nobody else gets its port while it reboots.
        super().__init__("first", folder, key, {"MaxStartups": "100"}, port=free_low_port())

    def _try_start(self) -> bool:
        file = self.folder / "sshd_config"
        file.write_text("".join(f"{key} {value}\n" for key, value in self.configuration().items()))
        boot_id = self.folder / f"boot-{uuid.uuid4()}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*UNSHARE, sys.executable, "-c", INIT, str(boot_id), SSHD, "-D", "-e", "-f", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        deadline = time.monotonic() + 300
        while self.process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return True
            time.sleep(0.01)
        return False

    def _ask(self, *words: object) -> Any:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def scan(self) -> dict[int, Seen]:
        """Return every living process."""
        return {int(pid): Seen(*seen) for pid, seen in self._ask("look").items()}

    def take_pid(self, pid: int) -> bool:
        """Give a pid to a process that has nothing to do with any job; False when it is not free."""
        return bool(self._ask("take", pid))

    def kill(self, pid: int) -> None:
        """Kill a process, as its kernel would that has no memory left."""
        self._ask("kill", pid, signal.SIGKILL)

    def drop_connections(self) -> None:
        """Kill the processes that serve connections, not the listener, which has any pid once pids began again."""
        self._ask("drop")

    def reboot(self) -> None:
        """End every process at once, and come back as another boot."""
        self.stop()
        deadline = time.monotonic() + 300
        while not self._try_start():
            self.stop()
            assert time.monotonic() < deadline, "it did not come back"

    def stop(self) -> None:
        """Pull the plug."""
        if self.process is None:
            return
        self.process.kill()
        self.process.communicate()
        self.process = None
