"""A Slurm cluster of network hosts with one home: the controller on the first, a slurmd on each of the others."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Self

from tests.network_hosts import missing

if TYPE_CHECKING:
    from tests.network_hosts import Network, NetworkHost

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "munged", "mungekey")
# Each node has so many files in the place of GPUs; what is started for a job sees their numbers.
GPUS = 4
# A node whose job ended while the controller was off tells it again after a minute or two.
_START_SECONDS = 240.0

_SLURM_CONF = """
ClusterName=tests
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=200000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PropagateResourceLimits=NONE
StateSaveLocation=/mnt/host/state
SlurmdSpoolDir=/mnt/host/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/mnt/host/slurmctld.log
SlurmdLogFile=/mnt/host/slurmd.log
SlurmdDebug=verbose
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=15
MinJobAge=300
JobRequeue=1
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1:00:00 State=UP OverSubscribe=NO
PartitionName=low Nodes=ALL MaxTime=10 State=UP PreemptMode=REQUEUE PriorityTier=1
"""


def missing_slurm() -> str | None:
    """Return why no cluster can be made here, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    return missing() or (f"a Slurm cluster needs {', '.join(absent)}" if absent else None)


class SlurmCluster:
    """A controller on a login node, and nodes; all have the home of the login node.

    Attributes:
        login: The host to log in to.
        nodes: The hosts that run jobs.
    """

    def __init__(self, network: Network) -> None:
        self.login = network.host("login")
        self.nodes = [network.host(name, shares_home_with=self.login) for name in ("n1", "n2")]

    @property
    def hosts(self) -> list[NetworkHost]:
        """All of them."""
        return [self.login, *self.nodes]

    def start(self) -> Self:
        """Start all daemons, and wait until the nodes are idle."""
        for host in self.hosts:
            self._configure(host)
            self._start_munge(host)
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_until_idle()
        return self

    def start_controller(self, *options: str) -> None:
        """Start the controller; with ``-c``, it has forgotten all batch jobs."""
        _on(self.login, "slurmctld", "-f", "/etc/slurm/slurm.conf", *options)

    def start_node(self, node: NetworkHost) -> None:
        """Start the daemon of a node."""
        _on(node, "slurmd", "-f", "/etc/slurm/slurm.conf")

    def wait_until_idle(self) -> None:
        """Wait until every node takes jobs."""
        deadline = time.monotonic() + _START_SECONDS
        while (states := self.run("sinfo", "-h", "-N", "-p", "gpu", "-o", "%t").split()) != ["idle"] * len(self.nodes):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes are {states}: {self.logs()}")
            time.sleep(0.05)

    def queue(self) -> list[str]:
        """Return the id and the state of each batch job that is not over."""
        return self.run("squeue", "-h", "-r", "-o", "%i %T").splitlines()

    def empty(self) -> None:
        """End all batch jobs, and wait until the nodes are idle; a controller that has crashed is started again."""
        if "DOWN" in self.run("scontrol", "ping"):
            self.start_controller()
        self.run("scancel", "--user=root")
        # Slurm drains a node where it begins a job again whose processes have not all ended.
        for node in self.nodes:
            self.run("scontrol", "update", f"nodename={node.name}", "state=resume")
        self.wait_until_idle()

    def stop_controller(self) -> None:
        """End the controller; the nodes go on."""
        self.login.run("pkill", "-x", "slurmctld")
        deadline = time.monotonic() + _START_SECONDS
        while any("slurmctld" in command for command in self.login.pids().values()):
            if time.monotonic() > deadline:
                raise RuntimeError("the controller does not end")
            time.sleep(0.05)

    def reboot_login(self) -> None:
        """Take the power of the login node away and give it back; the controller has ended before, as on a shutdown."""
        self.stop_controller()
        self.login.reboot()
        self._configure(self.login)
        self._start_munge(self.login)
        self.start_controller()

    def kill_node(self, node: NetworkHost) -> None:
        """Take the power of a node away, let Slurm notice, and give it back."""
        node.power_off()
        deadline = time.monotonic() + _START_SECONDS
        while "down" not in self.run("sinfo", "-h", "-n", node.name, "-o", "%t"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm does not notice that {node.name} is off: {self.logs()}")
            time.sleep(0.2)
        node.power_on()
        self._configure(node)
        self._start_munge(node)
        self.start_node(node)
        while self.run("sinfo", "-h", "-n", node.name, "-p", "gpu", "-o", "%t").strip() != "idle":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{node.name} does not come back: {self.logs()}")
            time.sleep(0.2)

    def run(self, *words: str) -> str:
        """Run a command of Slurm on the login node."""
        return self.login.run(*words).stdout

    def logs(self) -> str:
        """What the daemons have logged last."""
        files = [self.login.folder / "slurmctld.log", *(node.folder / "slurmd.log" for node in self.nodes)]
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files if file.exists())

    def _configure(self, host: NetworkHost) -> None:
        names = "".join(f"{each.address} {each.name}\n" for each in self.hosts)
        # Debian's own entry for a machine's name leads to loopback, where no other node is.
        (host.folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
        line = f"CPUs=4 RealMemory=1000 Gres=gpu:{GPUS} State=UNKNOWN"
        nodes = "\n".join(f"NodeName={node.name} NodeAddr={node.address} {line}" for node in self.nodes)
        (host.folder / "slurm").mkdir(exist_ok=True)
        (host.folder / "slurm" / "slurm.conf").write_text(_SLURM_CONF.format(nodes=nodes))
        gpus = host.folder / "gpus"
        gpus.mkdir(exist_ok=True)
        for number in range(GPUS):
            (gpus / f"gpu{number}").touch()
        (host.folder / "slurm" / "gres.conf").write_text(
            f"Name=gpu Flags=nvidia_gpu_env File=/mnt/host/gpus/gpu[0-{GPUS - 1}]\n"
        )
        for folder in ("state", "spool"):
            (host.folder / folder).mkdir(exist_ok=True)
        # Its /etc is made of links into ours; this one is its own.
        _on(host, "/bin/sh", "-c", "rm -rf /etc/slurm && ln -s /mnt/host/slurm /etc/slurm")

    def _start_munge(self, host: NetworkHost) -> None:
        key = self.login.folder / "munge.key"
        if not key.exists():
            _on(self.login, "mungekey", "--create", "--keyfile=/mnt/host/munge.key")
        if host is not self.login:
            shutil.copy(key, host.folder / "munge.key")
        _on(host, "mkdir", "-p", "/run/munge")
        options = ["--key-file=/mnt/host/munge.key", "--log-file=/run/munge/log", "--seed-file=/run/munge/seed"]
        _on(host, "munged", "--force", *options, "--pid-file=/run/munge/pid")


def _on(host: NetworkHost, *words: str) -> None:
    """Run a command, which may leave a daemon that has its output."""
    done = host.run("/bin/sh", "-c", '"$@" >/run/said 2>&1 </dev/null', "sh", *words)
    if done.returncode:
        said = host.run("cat", "/run/said").stdout
        raise RuntimeError(f"{host.name}: {' '.join(words)}: exit code {done.returncode}: {said}")
