"""Servers in namespaces of their own: an address, a hostname, processes, ``/tmp`` and an sshd that are nobody else's.

The hosts of a test are plugged into one switch, a bridge in a network namespace; the test itself is the laptop, on
the same switch. A host can lose its cable, be slow, lose packets, lose its power and come back with a new boot id.
What a killed run has left is found by its name, see :mod:`tests.leftovers`. Needs root.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.leftovers import new_name, try_to
from tests.processes import read_of
from tests.sshd import SSHD, make_key

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = ("ip", "nft", "tc", "unshare", "nsenter", "setpriv", "mount", "ssh-keygen", SSHD)
# A child that is to end with us ends with the thread that started it: this one lives as long as we do.
_launcher = ThreadPoolExecutor(1, thread_name_prefix="hosts")
HOME = "/mnt/home"
_NEVER = "/run/never"
_START_SECONDS = 300.0
_ALL = 100
_KILL = 9
_HANG_UP = 1
_FAKE_TIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")

# The first process of a host. Its arguments are folders under /tmp that Python needs, such as the environment.
_INIT = f"""
set -e
cd /
echo "$HOST_NAME" > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/host {HOME} /mnt/kept /mnt/etc
mount --bind "$HOST_FOLDER" /mnt/host
mount --bind "$HOST_HOME" {HOME}
n=0
for path; do n=$((n + 1)); mkdir /mnt/kept/$n; mount --rbind "$path" /mnt/kept/$n; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
n=0
for path; do n=$((n + 1)); mkdir -p "$path"; mount --move /mnt/kept/$n "$path"; done
# Links: a file that is mounted over another one goes when the machine replaces that one, as useradd does with passwd.
mount --rbind /etc /mnt/etc
mount -t tmpfs -o mode=755 tmpfs /etc
ln -s /mnt/etc/* /etc
find /mnt/etc -maxdepth 1 -type l -exec cp -P --remove-destination -t /etc {{}} +
for name in passwd hosts machine-id; do
    if [ -e /etc/$name ]; then ln -sf /mnt/host/$name /etc/$name; fi
done
mount --bind /mnt/host/boot_id /proc/sys/kernel/random/boot_id
mkdir -p /run/sshd /run/lock
mkfifo {_NEVER}
# It never runs out of children to wait for, and so takes in every orphan.
cat {_NEVER} &
{SSHD} -D -e -f /mnt/host/sshd_config < /dev/null >> /mnt/host/sshd.log 2>&1 &
while :; do wait || :; done
"""

# Whether the kernel has all of it, and lets us.
_PROBE = """
ip netns add "$1"
ip -n "$1" link add switch type bridge
ip -n "$1" link set switch up
tc -n "$1" qdisc replace dev switch root tbf rate 1mbit burst 2kb latency 400ms
ip netns exec "$1" nft 'table bridge faults { chain forward { type filter hook forward priority 0; }; }'
unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc mount -t tmpfs tmpfs /mnt
"""

_SSHD_CONFIG = """
Port 22
AddressFamily any
HostKey /mnt/host/host_key
PidFile /mnt/host/sshd.pid
AuthorizedKeysFile /mnt/host/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
UseDNS no
LogLevel VERBOSE
"""


@functools.cache
def missing() -> str | None:
    """Return why no host can be made here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "servers in namespaces of their own need root on Linux"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"servers in namespaces of their own need {', '.join(absent)}"
    name = new_name()
    tried = subprocess.run(["/bin/sh", "-ec", _PROBE, "probe", name], capture_output=True, text=True, check=False)
    try_to("ip", "netns", "del", name)
    return f"this system allows no servers in namespaces: {tried.stderr.strip()}" if tried.returncode else None


class NetworkHost:
    """One server. Its account is root with the home folder ``HOME``, which the test sees as ``home``.

    Attributes:
        name: Also its hostname.
        number: Its place on the switch.
        folder: Its own files: the home, sshd's log, and ``hosts``, which is its ``/etc/hosts``.
        options: More lines of its sshd_config, by name; read when it starts and by :meth:`reload_sshd`.
    """

    username = "root"
    port = 22

    def __init__(self, network: Network, name: str, number: int, home: Path) -> None:
        self.name = name
        self.number = number
        self.folder = network.root / name
        self.home = home
        self.key = network.key
        self.address = f"10.213.{network.subnet}.{number}"
        self.address6 = f"fd13:213:0:{network.subnet:x}::{number:x}"
        self.options: dict[str, str] = {}
        self._network = network
        self._namespace = f"{network.name}h{number}"
        self._is_cut = False
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __repr__(self) -> str:
        return f"<NetworkHost {self.name} {self.address}>"

    @property
    def switch_port(self) -> str:
        """The end of its cable in the switch."""
        return f"p{self.number}"

    @property
    def is_on(self) -> bool:
        """Whether it has power."""
        return self._process is not None

    # As on its console

    def run(self, *words: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a command on it, without the network."""
        return subprocess.run(
            self._inside(words),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command on it that ends with it; its output can be read."""
        return subprocess.Popen(self._inside(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def _inside(self, words: tuple[str, ...]) -> list[str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        inside = ["env", "-i", "-C", HOME, f"HOME={HOME}", f"PATH={path}", *words]
        return ["nsenter", f"--target={self._init}", "-m", "-u", "-i", "-n", "-p", "--", *inside]

    def pids(self) -> dict[int, str]:
        """Return pid, as it is called there, and command line of all processes but sshd's and the first one."""
        found = {}
        for outer, inner in self._all_pids().items():
            with suppress(OSError):
                command = Path(f"/proc/{outer}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                is_ours = inner == 1 or command.strip() == f"cat {_NEVER}" or _command_name(outer) == "sshd"
                if command and not is_ours:
                    found[inner] = command.strip()
        return found

    def outer_pid(self, pid: int) -> int:
        """Return what the test's own namespace calls a process of this host."""
        return next(outer for outer, inner in self._all_pids().items() if inner == pid)

    def signal_all(self, number: int) -> None:
        """Send a signal to every process that ``pids`` lists; some may end with the first ones."""
        for pid in self.pids():
            with suppress(StopIteration, ProcessLookupError):
                os.kill(self.outer_pid(pid), number)

    def log(self) -> str:
        """Everything its sshd has logged."""
        return (self.folder / "sshd.log").read_text(errors="replace")

    def drop_connections(self) -> None:
        """Kill the sshd processes that serve connections; the one that listens goes on."""
        for outer in self.session_pids():
            with suppress(ProcessLookupError):
                os.kill(outer, _KILL)

    def session_pids(self) -> list[int]:
        """The sshd processes that serve connections."""
        listening = self._listening_sshd()
        return [outer for outer in self._all_pids() if _command_name(outer) == "sshd" and outer != listening]

    # What happens to its network

    def cut(self) -> None:
        """Pull its cable: nothing goes in or out, and nobody is told."""
        self._is_cut = True
        self._network.in_switch(f"link set {self.switch_port} down")

    def cut_from(self, other: NetworkHost) -> None:
        """Drop what goes between it and another host, both ways."""
        ports = {self.switch_port, other.switch_port}
        self._network.add_rule(ports, f'iifname "{self.switch_port}" oifname "{other.switch_port}" drop')
        self._network.add_rule(ports, f'iifname "{other.switch_port}" oifname "{self.switch_port}" drop')

    def cut_from_laptop(self) -> None:
        """Drop what goes between it and the test; other hosts reach it."""
        self._network.add_rule({self.switch_port}, f'iifname "{self.switch_port}" oifname "laptop" drop')
        self._network.add_rule({self.switch_port}, f'iifname "laptop" oifname "{self.switch_port}" drop')

    def mute(self) -> None:
        """Drop what it says; what is said to it arrives."""
        self._network.add_rule({self.switch_port}, f'iifname "{self.switch_port}" drop')

    def drop(self, percent: float) -> None:
        """Lose packets at random, both ways."""
        for way in ("iifname", "oifname"):
            some = "" if percent >= _ALL else f"numgen random mod 10000 < {round(percent * 100)}"
            self._network.add_rule({self.switch_port}, f'{way} "{self.switch_port}" {some} drop')

    def block_port(self, port: int | str) -> None:
        """Drop what comes for a TCP port, a range ``"1024-65535"`` or a set ``"{ 22, 80-90 }"``, as a firewall does."""
        self._network.add_rule({self.switch_port}, f'oifname "{self.switch_port}" tcp dport {port} drop')

    def slow(self, bits_per_second: str) -> None:
        """Let no more through than ``"2mbit"``, each way."""
        filter_words = ["root", "tbf", "rate", bits_per_second, "burst", "2kb", "latency", "400ms"]
        switch = self._network.switch
        _command("tc", "-n", switch, "qdisc", "replace", "dev", self.switch_port, *filter_words)
        _command("tc", "-n", self._namespace, "qdisc", "replace", "dev", "eth0", *filter_words)

    def mend(self) -> None:
        """Undo all that was done to its network."""
        self._is_cut = False
        self._network.remove_rules(self.switch_port)
        if self._process is not None:
            for namespace, device in ((self._network.switch, self.switch_port), (self._namespace, "eth0")):
                try_to("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
            self._network.in_switch(f"link set {self.switch_port} up")

    def add_interface(self, name: str, address: str) -> None:
        """Give it a cable into another switch, with an address like ``192.168.7.2/24``; until its power goes."""
        port, bridge = f"{self.switch_port}{name}", f"switch-{name}"
        try_to("ip", "-n", self._network.switch, "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
        self._network.in_switch(
            f"link set {bridge} up",
            f"link add {port} type veth peer name {name} netns {self._namespace}",
            f"link set {port} master {bridge}",
            f"link set {port} up",
        )
        _batch(self._namespace, f"addr add {address} dev {name}", f"link set {name} up")

    # What happens to the machine

    def reboot(self) -> None:
        """Take its power away and give it back: a new boot id, an empty ``/tmp``, the same home and address."""
        self.power_off()
        self.power_on()

    def power_off(self) -> None:
        """End all its processes at once; its network does not say so, as with a real one."""
        if self._process is None:
            return
        try_to("ip", "-n", self._network.switch, "link", "set", self.switch_port, "down")
        with suppress(ProcessLookupError):
            os.kill(self._init or self._process.pid, _KILL)
        # The kernel lets the first process go when all the others have gone.
        self._process.wait()
        self._process = None
        self._init = 0
        # Its connections go with its namespace; otherwise they would say goodbye when the link is back.
        try_to("ip", "-n", self._network.switch, "link", "del", self.switch_port)
        try_to("ip", "netns", "del", self._namespace)

    def power_on(self, *, wait: bool = True) -> None:
        """Start it, and wait until its sshd answers."""
        self._write_files()
        self._plug_in()
        values = {"HOST_NAME": self.name, "HOST_FOLDER": str(self.folder), "HOST_HOME": str(self.home)}
        where = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{self._namespace}", "--"]
        namespaces = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "init.log").open("wb") as log:
            init = ["/bin/sh", "-c", _INIT, "init", *_kept_folders()]
            self._process = _launcher.submit(
                subprocess.Popen,
                [*where, *namespaces, "--", *init],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | values,
            ).result()
        if wait:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until its sshd listens, seen from inside: its cable may be cut."""
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while not self._sshd_is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {(self.folder / 'init.log').read_text()}{self.log()}")
            time.sleep(0.005)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self._init = int(children.split()[0])

    def reload_sshd(self) -> None:
        """Let sshd take its configuration anew; open connections stay."""
        self._write_sshd_config()
        listening = self._listening_sshd()
        self._pid_file.unlink()
        os.kill(listening, _HANG_UP)
        deadline = time.monotonic() + _START_SECONDS
        while not self._sshd_is_up():
            if time.monotonic() > deadline:
                raise RuntimeError(f"sshd of {self.name} did not come back: {self.log()}")
            time.sleep(0.005)

    @contextmanager
    def fill_disk(self) -> Iterator[None]:
        """Leave no room in its home, which has a disk of its own; the room is back afterwards."""
        filler = self.home / ".filler"
        assert os.path.ismount(self.home), "make the host with disk='8m'"
        with filler.open("wb", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(bytes(4096))
        try:
            yield
        finally:
            filler.unlink()

    def skew_clock(self, seconds: float) -> None:
        """Let what is started over SSH from now on see another time of day; a later call moves the clock at once."""
        library = fake_time_library()
        assert library is not None, "ask fake_time_library() first"
        # Programs look into the file at every question, so it is never empty.
        new = self.folder / "clock.new"
        new.write_text(f"{seconds:+g}\n")
        new.replace(self.folder / "clock")
        if "SetEnv" not in self.options:
            variables = f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE=/mnt/host/clock FAKETIME_NO_CACHE=1"
            self.options["SetEnv"] = f"{variables} FAKETIME_DONT_FAKE_MONOTONIC=1"
            self.reload_sshd()

    # How it is made

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        if not (self.folder / "host_key").exists():
            make_key(self.folder / "host_key")
            shutil.copy(self.key.with_name(f"{self.key.name}.pub"), self.folder / "authorized_keys")
            (self.folder / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
            # As Debian has it: the machine's own name leads to the loopback interface.
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {self.name}\n")
            (self.folder / "passwd").write_text(_passwd())
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.folder / "sshd.log").write_text("")
        self._pid_file.unlink(missing_ok=True)
        self._write_sshd_config()

    @property
    def _pid_file(self) -> Path:
        return self.folder / "sshd.pid"

    def _sshd_is_up(self) -> bool:
        # It is written when sshd listens and takes signals.
        return self._pid_file.exists() and bool(self._pid_file.read_text().strip())

    def _write_sshd_config(self) -> None:
        more = "".join(f"{key} {value}\n" for key, value in self.options.items())
        # sshd takes the first of several.
        (self.folder / "sshd_config").write_text(more + _SSHD_CONFIG)

    def _plug_in(self) -> None:
        network = self._network
        hardware = f"02:13:{network.subnet:02x}:00:00:{self.number:02x}"
        _command("ip", "netns", "add", self._namespace)
        network.in_switch(
            f"link add {self.switch_port} type veth peer name eth0 address {hardware} netns {self._namespace}",
            f"link set {self.switch_port} master switch",
            f"link set {self.switch_port} {'down' if self._is_cut else 'up'}",
        )
        _batch(
            self._namespace,
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            f"addr add {self.address6}/64 dev eth0 nodad",
            "link set eth0 up",
        )
        # Silence is all that a laptop gets from afar; on its own wire it would hear that nobody has the address.
        _batch(
            None,
            f"neigh replace {self.address} lladdr {hardware} dev {network.name} nud permanent",
            f"neigh replace {self.address6} lladdr {hardware} dev {network.name} nud permanent",
        )

    def _all_pids(self) -> dict[int, int]:
        """Return our name and its own name for each of its processes."""
        if not self._init:
            return {}
        namespace = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if (entry / "ns" / "pid").readlink() == namespace:
                        found[int(entry.name)] = _inner_pid(entry)
        return found

    def _listening_sshd(self) -> int:
        for outer in self._all_pids():
            if _command_name(outer) == "sshd" and _parent(outer) == self._init:
                return outer
        raise RuntimeError(f"sshd of {self.name} is not there: {self.log()}")


class Network:
    """A switch, the test's own cable to it, and the hosts."""

    def __init__(self, root: Path, key: Path) -> None:
        self.root = root
        self.key = key
        self.name = new_name()
        self.switch = f"{self.name}s"
        self.subnet, self._claim = _claim_subnet()
        self.address = f"10.213.{self.subnet}.1"
        self._hosts: list[NetworkHost] = []
        self._disks: list[Path] = []
        self._rules: list[tuple[set[str], str]] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def host(self, name: str, *, disk: str | None = None, shares_home_with: NetworkHost | None = None) -> NetworkHost:
        """Start a host, with a home on a disk of its own of this size (``"64m"``), or with another one's home."""
        host = self._add(name, disk, shares_home_with)
        host.power_on()
        return host

    def hosts(self, *names: str) -> list[NetworkHost]:
        """Start several hosts at once."""
        hosts = [self._add(name, None, None) for name in names]
        for host in hosts:
            host.power_on(wait=False)
        for host in hosts:
            host.wait_until_up()
        return hosts

    def slow_laptop(self, bits_per_second: str) -> None:
        """Let no more through than ``"20mbit"`` between the test and all hosts, each way; not among them."""
        filter_words = ["root", "tbf", "rate", bits_per_second, "burst", "32kb", "latency", "100ms"]
        _command("tc", "qdisc", "replace", "dev", self.name, *filter_words)
        _command("tc", "-n", self.switch, "qdisc", "replace", "dev", "laptop", *filter_words)

    def bytes_sent(self) -> int:
        """Return how many bytes the test has sent to the hosts so far."""
        return int(Path(f"/sys/class/net/{self.name}/statistics/tx_bytes").read_text())

    def close(self) -> None:
        """Remove everything."""
        for host in self._hosts:
            host.power_off()
        try_to("ip", "link", "del", self.name)
        try_to("ip", "netns", "del", self.switch)
        for disk in self._disks:
            try_to("umount", "--lazy", str(disk))
        self._claim.close()

    def in_switch(self, *commands: str) -> None:
        """Run commands of ip(8) in the switch."""
        _batch(self.switch, *commands)

    def add_rule(self, ports: set[str], rule: str) -> None:
        """Let the switch drop packets, until one of these ports is mended."""
        self._rules.append((ports, rule))
        self._set_rules()

    def remove_rules(self, port: str) -> None:
        """Forget the rules that are about a port."""
        remaining = [(ports, rule) for ports, rule in self._rules if port not in ports]
        if len(remaining) < len(self._rules):
            self._rules = remaining
            self._set_rules()

    def _make(self) -> None:
        _command("ip", "netns", "add", self.switch)
        _batch(
            None,
            f"link add {self.name} type veth peer name laptop netns {self.switch}",
            f"addr add {self.address}/24 dev {self.name}",
            f"addr add fd13:213:0:{self.subnet:x}::1/64 dev {self.name} nodad",
            f"link set {self.name} up",
        )
        self.in_switch(
            "link add switch type bridge mcast_snooping 0",
            "link set switch up",
            "link set laptop master switch",
            "link set laptop up",
        )

    def _add(self, name: str, disk: str | None, shares_home_with: NetworkHost | None) -> NetworkHost:
        home = self.root / name / "home" if shares_home_with is None else shares_home_with.home
        host = NetworkHost(self, name, len(self._hosts) + 2, home)
        self._hosts.append(host)
        if disk is not None:
            home.mkdir(parents=True)
            _command("mount", "-t", "tmpfs", "-o", f"size={disk},mode=700", self.name, str(home))
            self._disks.append(home)
        return host

    def _set_rules(self) -> None:
        rules = "".join(f"{rule}\n" for _, rule in self._rules)
        hook = "type filter hook forward priority 0\n"
        table = f"table bridge faults {{\nchain forward {{\n{hook}{rules}}}\n}}\n"
        _command(
            "nsenter", f"--net=/run/netns/{self.switch}", "nft", "-f", "-",
            text=f"table bridge faults {{}}\ndelete table bridge faults\n{table}",
        )  # fmt: skip


def fake_time_library() -> str | None:
    """Return where libfaketime is."""
    for pattern in _FAKE_TIME:
        for path in Path("/").glob(pattern.removeprefix("/")):
            return str(path)
    return None


def _claim_subnet() -> tuple[int, socket.socket]:
    """Return a number that no other test on this machine has, and what holds it: it ends with this process."""
    for step in range(254):
        number = (os.getpid() + step) % 254 + 1
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0remote-tool-test-subnet-{number}")
        except OSError:
            claim.close()
        else:
            return number, claim
    raise RuntimeError("all 254 subnets for tests are taken")


def _kept_folders() -> list[str]:
    """Return where Python lies, if that is under ``/tmp``, which a host has empty."""
    prefixes = dict.fromkeys(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix))
    return [path for path in prefixes if path.startswith("/tmp/")]


def _passwd() -> str:
    lines = Path("/etc/passwd").read_text().splitlines()
    fields = [line.split(":") for line in lines]
    return "".join(":".join([*each[:5], HOME, *each[6:]] if each[0] == "root" else each) + "\n" for each in fields)


def _inner_pid(process: Path) -> int:
    for line in (process / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise OSError(f"{process} has no namespace")


def _command_name(pid: int) -> str:
    return read_of(pid, "comm").decode(errors="replace").strip()


def _parent(pid: int) -> int:
    fields = read_of(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _batch(namespace: str | None, *commands: str) -> None:
    """Run commands of ip(8) with one process."""
    where = [] if namespace is None else ["-n", namespace]
    _command("ip", *where, "-batch", "-", text="".join(f"{command}\n" for command in commands))


def _command(*words: str, text: str = "") -> None:
    result = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=300)
    if result.returncode:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}\n{text}")
