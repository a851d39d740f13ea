"""Host lists of Horovod, Open MPI, MPICH and DeepSpeed are read as they mean them, or refused with the place named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_tool.config import forms
from remote_tool.config.document import LARGEST_FILE
from remote_tool.config.hosts import ListedHost, name_for, parse_hostfile, parse_hosts
from remote_tool.errors import ConfigError, UsageError


def listed(*hosts: ListedHost) -> list[tuple[str, int | None]]:
    return [(host.hostname, host.processes) for host in hosts]


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_hostfile(text if isinstance(text, bytes) else text.encode(), "hosts")
    assert "HOST slots=PROCESSES" in caught.value.hint
    return caught.value.problems


def test_a_list_as_horovod_writes_it() -> None:
    assert listed(*parse_hosts("10.0.0.1:2, gpu-lab:4 ,node3")) == [("10.0.0.1", 2), ("gpu-lab", 4), ("node3", None)]


def test_users_and_ipv6_addresses_in_brackets() -> None:
    assert parse_hosts("me@[fd00::5]:2,you@a") == (ListedHost("fd00::5", "me", 2), ListedHost("a", "you"))


HOSTFILES = {
    "Open MPI": "# the lab\nnode01  slots=10 max_slots=20\n\nnode02 slots = 3\nnode03\n",
    "Open MPI, one line for each process": "node01\nnode02\nnode01\n",
    "MPICH": "node01:2\nnode02:4  # the fast one\nnode01:1\n",
    "DeepSpeed": "worker-1 slots=4\r\nworker-2 slots=4\r\n",
    "Horovod": "worker-0 slots=2\nme@worker-1 slots=2\n",
    "user=": "node01 slots=2 username=me\nnode02:2 user=you\n",
}
MEANT = {
    "Open MPI": [("node01", 10), ("node02", 3), ("node03", None)],
    "Open MPI, one line for each process": [("node01", 2), ("node02", None)],
    "MPICH": [("node01", 3), ("node02", 4)],
    "DeepSpeed": [("worker-1", 4), ("worker-2", 4)],
    "Horovod": [("worker-0", 2), ("worker-1", 2)],
    "user=": [("node01", 2), ("node02", 2)],
}


@pytest.mark.parametrize("form", HOSTFILES)
def test_a_hostfile_of_each_launcher(form: str) -> None:
    assert listed(*parse_hostfile(b"\xef\xbb\xbf" + HOSTFILES[form].encode(), "hosts")) == MEANT[form]


def test_users_of_a_hostfile() -> None:
    assert [host.username for host in parse_hostfile(HOSTFILES["user="].encode(), "hosts")] == ["me", "you"]
    assert parse_hostfile(b"me@a user=me\n", "hosts") == (ListedHost("a", "me"),)
    assert problems("me@a user=you\n") == ["hosts:1: a has two users, me and you; keep one of them"]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[01-03,20]", ["node01", "node02", "node03", "node20"]),
        ("a,gpu[9-11].lab,b", ["a", "gpu9.lab", "gpu10.lab", "gpu11.lab", "b"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("a,b,", ["a", "b"]),
        ("[fd00::5],node[1]", ["fd00::5", "node1"]),
    ],
)
def test_the_short_form_of_slurm_names_every_host(text: str, hosts: list[str]) -> None:
    assert [host.hostname for host in parse_hosts(text)] == hosts


def test_every_host_of_a_short_form_has_the_user_and_the_processes() -> None:
    assert parse_hosts("me@node[1-2]:4") == (ListedHost("node1", "me", 4), ListedHost("node2", "me", 4))
    assert parse_hostfile(b"me@node[1-2] slots=4\n", "hosts") == parse_hosts("me@node[1-2]:4")


@pytest.mark.parametrize("data", [b'{"hosts": ["a"]}', b'["a", "b"]', b'\n[\n  "a"\n]', b'[{"a": 1}]'])
def test_json_is_refused_in_one_sentence(data: bytes) -> None:
    assert problems(data) == ["hosts: is JSON, not a hostfile"]


def test_one_address_written_in_two_ways_is_one_host() -> None:
    assert listed(*parse_hosts("[fd00::5]:1,[fd00:0:0::5]:2,NODE:1,node:1")) == [("fd00::5", 3), ("NODE", 2)]


def test_two_users_of_one_address_are_two_hosts() -> None:
    assert len(parse_hosts("me@a:1,you@a:1")) == 2


def test_22_processes_are_doubted() -> None:
    with pytest.raises(UsageError, match="a:22 requests 22 processes") as caught:
        parse_hosts("a:22")
    assert caught.value.hint.startswith("Leave out :22")


@pytest.mark.parametrize("number", ["129", "2222", "65535"])
def test_a_port_is_not_taken_for_a_number_of_processes(number: str) -> None:
    with pytest.raises(UsageError, match=f"10.0.0.5:{number} requests {number} processes.* is not a port") as caught:
        parse_hosts(f"10.0.0.4:2,10.0.0.5:{number}")
    assert caught.value.hint == f"Set the SSH port in ~/.ssh/config: Host 10.0.0.5, Port {number}"


def test_22_slots_are_meant_where_a_file_says_so() -> None:
    assert listed(*parse_hostfile(b"a slots=22\nb slots=192\n", "hosts")) == [("a", 22), ("b", 192)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the host must be"),
        ("a,,b", "the host must be"),
        (",", "the host must be"),
        ("node[3-1]", "[3-1] is not a list of ranges"),
        ("node[1-]", "[1-] is not a list of ranges"),
        ("node[0-9999999]", "names more than 4096 hosts"),
        ("a[1-99]b[1-99]", "names more than 4096 hosts"),
        ("-oProxyCommand=x", "the host must be"),
        ("a;b", "the host must be"),
        ("fd00::5:2", "put IPv6 addresses in brackets"),
        ("[fd00::5", "put IPv6 addresses in brackets"),
        ("a:0", "positive whole number, found '0'"),
        ("a:two", "positive whole number, found 'two'"),
        ("a:", "positive whole number, found ''"),
        ("a:٢", "positive whole number"),
        ("@a", "the user must be"),
        ("-l@a", "the user must be"),
        ("me@", "the host must be"),
    ],
)
def test_what_is_no_list_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert problem in caught.value.message
    assert "HOST:PROCESSES" in caught.value.hint


def test_every_problem_of_a_hostfile_is_named_with_its_line() -> None:
    text = "a slots=2\na slots=2\nb ifname=eth0\n\nc:2222\nfe80::1 slots=2\nd slots=none\ne:2 slots=2\nu@f user=v\n"
    found = problems(text)
    assert [each.split(": ")[0] for each in found] == [f"hosts:{line}" for line in (2, 3, 5, 6, 7, 8, 9)]
    assert "a is listed twice, and slots= cannot be added up" in found[0]
    assert "'ifname=eth0' is not valid" in found[1]
    assert "Set the SSH port in ~/.ssh/config: Host c, Port 2222" in found[2]


@pytest.mark.parametrize("text", ["a slots=2\na\n", "a\na slots=2\n", "a:2\na slots=2\n"])
def test_slots_do_not_add_up_as_in_open_mpi_and_deepspeed(text: str) -> None:
    assert problems(text) == ["hosts:2: a is listed twice, and slots= cannot be added up"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "hosts: contains no hosts"),
        (b"# nothing\n\n", "hosts: contains no hosts"),
        (b"a\n\xff\n", "hosts:2: not valid UTF-8 (byte 0xff)"),
        (b"a" * (LARGEST_FILE + 1), "hosts: larger than 1.0 MiB"),
        (b"a\0b", "hosts:1: the host must be"),
    ],
)
def test_a_file_that_is_no_hostfile_is_refused(data: bytes, problem: str) -> None:
    (found,) = problems(data)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("host", "name"),
    [("10.0.0.1", "10.0.0.1"), ("gpu-lab", "gpu-lab"), ("fd00::5", "fd00--5"), ("::1", "1"), ("a" * 90, "a" * 64)],
)
def test_a_host_has_a_name_that_a_server_may_have(host: str, name: str) -> None:
    assert name_for(host) == name
    assert forms.SERVER_NAME.accepts(name)


@given(st.one_of(st.binary(max_size=200), st.text("ab:@[]=# \n\r\t.slots12", max_size=80).map(str.encode)))
def test_any_bytes_are_a_hostfile_or_refused(data: bytes) -> None:
    try:
        hosts = parse_hostfile(data, "hosts")
    except ConfigError:
        return
    assert hosts
    assert all(forms.HOSTNAME.accepts(host.hostname) for host in hosts)
    assert all(host.processes is None or host.processes > 0 for host in hosts)
    assert len({host.login for host in hosts}) == len(hosts)
