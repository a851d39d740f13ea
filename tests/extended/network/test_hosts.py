"""The servers in namespaces do what their verbs say, and leave nothing."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.figures import record_figure
from tests.leftovers import remove_leftovers, traces
from tests.network_hosts import Network, NetworkHost, fake_time_library

if TYPE_CHECKING:
    from collections.abc import Callable

# How long it takes to believe that nothing comes, and that something does not.
SILENCE_SECONDS = 0.4
# A Python that lies in /tmp is there on each server too.
OURS = f"-I {Path(sys.prefix).parts[2]}" if sys.prefix.startswith("/tmp/") else ""
# Of a machine that stands still for a while.
PATIENCE = 300.0


def test_a_host_has_a_name_an_address_processes_and_folders_of_its_own(network: Network) -> None:
    began = time.monotonic()
    first = network.host("first")
    record_figure("start of a server in namespaces (s)", time.monotonic() - began)
    second = network.host("second")
    (first.home / "mine").write_text("1")
    there = f"/tmp/of-{first.name}-{secrets.token_hex(8)}"
    shown = f"hostname; pwd; ls; ls -A {OURS} /tmp; echo; touch {there}; "
    shown += "cat /proc/sys/kernel/random/boot_id /etc/machine-id; readlink /proc/1/ns/pid"
    answers = [over_ssh(host, shown) for host in (first, second)]
    assert answers[0].splitlines()[:4] == ["first", "/mnt/home", "mine", ""]
    assert answers[1].splitlines()[:3] == ["second", "/mnt/home", ""]
    # Boot, machine and processes: no two of the three are the same.
    assert not set(answers[0].splitlines()[-3:]) & set(answers[1].splitlines()[-3:])
    assert str(Path("/proc/self/ns/pid").readlink()) not in answers[0]
    assert not Path(there).exists()
    assert "first" not in socket.gethostname()


def test_a_file_that_this_machine_replaces_in_etc_takes_nothing_from_a_host(network: Network) -> None:
    host = network.host("host")
    # A mount on passwd would go with the file when a user is added here, and the home would be this machine's.
    assert host.run("readlink", "/etc/passwd").stdout == "/mnt/host/passwd\n"
    missing_there = "for each in /etc/*; do [ -e $each ] || [ ! -e /mnt/etc/${each#/etc/} ] || echo $each; done"
    assert host.run("sh", "-c", missing_there).stdout == ""


def test_its_processes_are_listed_without_what_belongs_to_every_host(network: Network) -> None:
    host = network.host("host")
    # What keeps its first process company may still be on its way to its own name.
    wait_until(lambda: host.pids() == {})
    over_ssh(host, "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
    wait_until(lambda: list(host.pids().values()) == ["sleep 1000"])
    (pid,) = host.pids()
    os.kill(host.outer_pid(pid), signal.SIGKILL)
    # Its first process takes in orphans.
    wait_until(lambda: "sleep" not in host.run("ps", "axo", "stat,comm").stdout)


def test_a_pulled_cable_is_silent_both_ways_and_mended_goes_on(network: Network) -> None:
    host, other = network.hosts("host", "other")
    with closing(greeted(host)) as link:
        host.cut()
        link.sendall(b"SSH-2.0-test\r\n")
        assert not answers(link)
        assert is_cut_from(other, host)
        assert is_cut_from(host, other)
        with pytest.raises(TimeoutError):
            greeted(host, SILENCE_SECONDS)
        host.mend()
        # The next attempt comes after as long again as the cable was out.
        link.settimeout(300)
        assert link.recv(100)  # its part of the key exchange
    assert reaches(other, host)
    assert reaches(host, other)


def test_two_hosts_cut_from_each_other_are_both_reached(network: Network) -> None:
    first, second, third = network.hosts("first", "second", "third")
    first.cut_from(second)
    assert [is_cut_from(first, second), is_cut_from(second, first)] == [True, True]
    assert [reaches(first, third), reaches(third, second)] == [True, True]
    greeted(first).close()
    greeted(second).close()
    second.mend()
    assert reaches(first, second)


def test_a_host_cut_from_the_laptop_is_reached_by_another(network: Network) -> None:
    near, far = network.hosts("near", "far")
    far.cut_from_laptop()
    with pytest.raises(TimeoutError):
        greeted(far, SILENCE_SECONDS)
    assert reaches(near, far)


def test_a_mute_host_hears_and_says_nothing(network: Network) -> None:
    host = network.host("host")
    with closing(greeted(host)) as link:
        host.mute()
        link.sendall(b"no SSH at all\r\n")
        assert not answers(link)
        wait_until(lambda: "no SSH at all" in host.log())


def test_a_blocked_port_is_silent_and_the_others_are_not(network: Network) -> None:
    host = network.host("host")
    host.block_port(22)
    with pytest.raises(TimeoutError):
        greeted(host, SILENCE_SECONDS)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.address, 23), timeout=PATIENCE)
    host.block_port("20-30")
    with pytest.raises(TimeoutError):
        socket.create_connection((host.address, 23), timeout=SILENCE_SECONDS)
    host.mend()
    greeted(host).close()


def test_some_packets_are_lost(network: Network) -> None:
    host = network.host("host")
    count = (
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.bind(('', 5000))\nprint('ready', flush=True)\n"
        "n = 0\nwhile s.recv(10) != b'end':\n    n += 1\nprint(n)\n"
    )
    with host.spawn(sys.executable, "-c", count) as counter, socket.socket(type=socket.SOCK_DGRAM) as sender:
        assert counter.stdout is not None
        assert counter.stdout.readline() == b"ready\n"
        sender.connect((host.address, 5000))
        host.drop(40)
        for _ in range(400):
            sender.send(b"one")
        host.mend()
        sender.send(b"end")
        # Of 400, 240 come; six standard deviations are 59.
        assert 180 < int(counter.stdout.readline()) < 300


@pytest.mark.slow
def test_a_slow_link_takes_its_time_until_it_is_mended(network: Network) -> None:
    host = network.host("host")
    # The best of several: the machine may have been busy.
    fast = min(seconds_for(100_000, host) for _ in range(5))
    host.slow("800kbit")
    slow = seconds_for(100_000, host)
    host.mend()
    assert fast < 0.5
    assert slow > 0.7
    assert min(seconds_for(100_000, host) for _ in range(5)) < 0.5


def test_a_reboot_ends_everything_and_says_nothing(network: Network) -> None:
    host = network.host("host")
    (host.home / "kept").write_text("1")
    over_ssh(host, "touch /tmp/gone /run/gone /dev/shm/gone; setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
    boot = host.run("cat", "/proc/sys/kernel/random/boot_id").stdout
    with closing(greeted(host)) as link:
        host.power_off()
        assert not answers(link)
        host.power_on()
        # What the machine does not know any more it refuses.
        link.sendall(b"SSH-2.0-test\r\n")
        link.settimeout(PATIENCE)
        with pytest.raises(ConnectionResetError):
            link.recv(100)
    assert host.pids() == {}
    assert over_ssh(host, f"ls {OURS} /tmp /dev/shm; ls /run/gone; ls").splitlines() == [
        "/dev/shm:",
        "",
        "/tmp:",
        "kept",
    ]
    assert host.run("cat", "/proc/sys/kernel/random/boot_id").stdout != boot


def test_a_host_outlives_the_thread_that_started_it(network: Network) -> None:
    host = network.host("host")
    rebooter = threading.Thread(target=host.reboot)
    rebooter.start()
    rebooter.join()
    time.sleep(0.1)  # what would end it comes at once
    greeted(host).close()


def test_ended_connections_are_told_and_new_ones_are_taken(network: Network) -> None:
    host = network.host("host")
    with closing(greeted(host)) as link:
        host.drop_connections()
        link.settimeout(PATIENCE)
        assert link.recv(100) == b""
    greeted(host).close()


def test_a_full_disk_takes_nothing_until_there_is_room(network: Network) -> None:
    host = network.host("host", disk="1m")
    with host.fill_disk():
        assert "No space left" in host.run("cp", "/etc/passwd", "file").stderr
    assert host.run("sh", "-c", "echo 1 > file && cat file").stdout == "1\n"
    network.close()
    assert not os.path.ismount(host.home)


def test_a_home_is_shared(network: Network) -> None:
    first = network.host("first")
    second = network.host("second", shares_home_with=first)
    first.run("sh", "-c", "echo 1 > file")
    assert second.run("cat", "file").stdout == "1\n"


def test_a_skewed_clock_is_seen_over_ssh_and_can_jump(network: Network) -> None:
    if fake_time_library() is None:
        pytest.skip("needs libfaketime")
    host = network.host("host")
    host.skew_clock(-1000)
    assert abs(int(over_ssh(host, "date +%s")) - (time.time() - 1000)) < 30
    jumping = "import time\na, b = time.time(), time.monotonic()\nprint(flush=True)\ninput()\n"
    jumping += "print(int(time.time() - a), int(time.monotonic() - b))"
    command = ssh_command(host, f'{sys.executable} -c "{jumping}"')
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        host.skew_clock(+4000)
        wall, monotonic = map(int, program.communicate(b"\n", timeout=PATIENCE)[0].split())
    assert wall == pytest.approx(5000, abs=30)
    assert monotonic < 30


@pytest.mark.usefixtures("namespaces")
def test_nothing_is_left_also_after_a_failure(tmp_path: Path, ssh_key: Path) -> None:
    seen: list[str] = []

    def fail() -> None:
        with Network(tmp_path / "network", ssh_key) as network:
            host = network.host("host", disk="1m")
            over_ssh(host, "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
            host.cut()
            host.drop(1)
            assert len(traces(network.name)) == 4  # its namespace, the switch, our cable, the disk
            seen.extend([network.name, str(host.outer_pid(min(host.pids())))])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    name, pid = seen
    assert traces(name) == []
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces")
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path, ssh_key: Path) -> None:
    script = (
        "import pathlib, sys, time\nfrom tests.network_hosts import Network\n"
        "network = Network(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])).__enter__()\n"
        "host = network.host('host', disk='1m')\nhost.spawn('sleep', '1000')\n"
        "while 'sleep 1000' not in host.pids().values(): time.sleep(0.01)\n"
        "(pid,) = [pid for pid, command in host.pids().items() if command == 'sleep 1000']\n"
        "print(network.name, host.outer_pid(pid), flush=True)\ninput()\n"
    )
    root = Path(__file__).parents[3]
    words = [sys.executable, "-c", script, str(tmp_path / "network"), str(ssh_key)]
    with subprocess.Popen(words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        name, pid = run.stdout.readline().decode().split()
        # Once it is killed, other tests that begin now may remove them too.
        assert len(traces(name)) == 4
        run.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    remove_leftovers()
    assert traces(name) == []


def ssh_command(host: NetworkHost, command: str) -> list[str]:
    """Return how the plain ssh program runs a command there."""
    options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    return ["ssh", "-q", *options, "-i", str(host.key), f"{host.username}@{host.address}", command]


def over_ssh(host: NetworkHost, command: str) -> str:
    """Run a command with the plain ssh program."""
    return subprocess.run(
        ssh_command(host, command), capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL
    ).stdout


def greeted(host: NetworkHost, seconds: float = PATIENCE) -> socket.socket:
    """Connect to its sshd, which says who it is.

    Raises:
        TimeoutError: Nothing came.
    """
    link = socket.create_connection((host.address, host.port), timeout=seconds)
    assert link.recv(100).startswith(b"SSH-2.0-OpenSSH")
    return link


def answers(link: socket.socket) -> bool:
    """Whether anything comes, be it the end."""
    link.settimeout(SILENCE_SECONDS)
    try:
        link.recv(100)
    except TimeoutError:
        return False
    return True


def is_cut_from(host: NetworkHost, other: NetworkHost) -> bool:
    """Whether a host hears nothing of the sshd of another."""
    return not reaches(host, other, SILENCE_SECONDS)


def reaches(host: NetworkHost, other: NetworkHost, seconds: float = PATIENCE) -> bool:
    """Whether a host is greeted by the sshd of another."""
    words = ["timeout", str(seconds), "bash", "-c", f"head -c 3 < /dev/tcp/{other.address}/22"]
    return host.run(*words).stdout == "SSH"


def seconds_for(size: int, host: NetworkHost) -> float:
    """Send this many bytes to a host and wait until all have come."""
    take = (
        "import socket\ns = socket.create_server(('', 5001))\nprint('ready', flush=True)\nc = s.accept()[0]\n"
        "while c.recv(65536): pass\nc.send(b'all')\n"
    )
    with host.spawn(sys.executable, "-c", take) as taker:
        assert taker.stdout is not None
        taker.stdout.readline()
        began = time.monotonic()
        with socket.create_connection((host.address, 5001), timeout=300) as link:
            link.sendall(bytes(size))
            link.shutdown(socket.SHUT_WR)
            assert link.recv(3) == b"all"
        return time.monotonic() - began


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for what must come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
