"""Host lists in launchers' syntax: ``10.0.0.1:2,10.0.0.2:2``, and hostfiles of MPI, DeepSpeed and Horovod.

This module does not know the configured servers.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from remote_tool.config import forms
from remote_tool.config.document import LARGEST_FILE, Problems
from remote_tool.errors import ConfigError, UsageError
from remote_tool.readable import readable_size

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FORM = "HOST or HOST:PROCESSES, such as 10.0.0.1:2, me@[fd00::5]:2 or node[01-16]:8"
LINE_FORM = "one host per line: HOST, HOST:PROCESSES or HOST slots=PROCESSES"
# A larger number of processes is probably meant as a port.
MOST_PROCESSES = 128
SSH_PORT = 22
PORT_HINT = "Set the SSH port in ~/.ssh/config: Host {host}, Port {number}"
USUAL_PORT_HINT = "Leave out :22, the SSH port; to start 22 processes, use --nproc-per-node 22"
# Keywords of a line; max_slots limits oversubscription, which we never do.
_WORDS = {"slots": "slots", "user": "user", "username": "user", "max_slots": "", "max-slots": ""}
_ENTRY = re.compile(r"(?:(?P<user>[^@]*)@)?(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<count>[^:]*))?")
# Slurm's short form, such as node[01-16,20]; an IPv6 address begins with a bracket.
_RANGES = re.compile(r"(?<=[^\s,@\[\]])\[(?P<ranges>[0-9][0-9,-]*)\]")
_COMMA = re.compile(r",(?![^\[]*\])")
MOST_HOSTS = 4096
# An IPv6 address in brackets begins with neither.
_JSON = (b"{", b'["', b"[{", b"[ ", b"[\n", b"[\r")
_SPACED_EQUALS = re.compile(r"\s*=\s*")


@dataclass(frozen=True)
class ListedHost:
    """A host of a list.

    Attributes:
        hostname: An address, a name, or an alias of ``~/.ssh/config``; without brackets.
        username: None: as ``~/.ssh/config`` says, else your own name.
        processes: Number of processes; None: not given.
    """

    hostname: str
    username: str | None = None
    processes: int | None = None

    @property
    def login(self) -> tuple[str, str | None]:
        """User and host, which identify it."""
        return forms.canonical_host(self.hostname), self.username


@dataclass(frozen=True)
class _Entry:
    """A mention of a host and its count: ``host`` and ``host:2`` add up, ``slots=2`` does not."""

    host: ListedHost
    has_slots: bool = False


def parse_hosts(text: str) -> tuple[ListedHost, ...]:
    """Parse ``HOST[:PROCESSES],…`` or Slurm's ``node[01-16,20]``; the processes of repeated hosts are added.

    Raises:
        UsageError: The list is invalid.
    """
    try:
        words = [word.strip() for word in _COMMA.split(text.strip().removesuffix(","))]
        entries = [_read_entry(each) for word in words for each in _expand(word)]
    except ValueError as error:
        raise UsageError(f"--hosts {text!r}: {error}", hint=_hint_of(error)) from None
    return _together(entries)


def load_hostfile(file: Path) -> tuple[ListedHost, ...]:
    """Read a hostfile from a file or a pipe.

    Raises:
        ConfigError: It cannot be read or is invalid; every problem is listed with its line.
    """
    try:
        with file.open("rb") as stream:
            return parse_hostfile(stream.read(LARGEST_FILE + 1), str(file))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint=f"ls -l {file}") from error


def parse_hostfile(data: bytes, shown: str) -> tuple[ListedHost, ...]:
    """Parse a hostfile; ``shown`` is its name in problems.

    Raises:
        ConfigError: It is invalid; every problem is listed with its line.
    """
    problems = Problems(shown)
    if data.lstrip().startswith(_JSON):
        raise ConfigError(f"{shown}: is JSON, not a hostfile", hint=f"A hostfile has {LINE_FORM}")
    entries = [] if len(data) > LARGEST_FILE else _read_lines(data, problems)
    if len(data) > LARGEST_FILE:
        problems.add(f"larger than {readable_size(LARGEST_FILE)}")
    elif not entries and not problems:
        problems.add("contains no hosts")
    if problems:
        raise ConfigError(problems.sentences(), hint=f"A hostfile has {LINE_FORM}")
    return _together(entries)


def name_for(hostname: str) -> str:
    """Return a server name for a host."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", hostname).strip(".-")[:64] or "server"


class _PortError(ValueError):
    """The number of processes is probably a port."""

    def __init__(self, host: str, number: int) -> None:
        super().__init__(f"{host}:{number} requests {number} processes; the number after a host is not a port")
        self.hint = USUAL_PORT_HINT if number == SSH_PORT else PORT_HINT.format(host=host, number=number)


def _hint_of(error: ValueError) -> str:
    return error.hint if isinstance(error, _PortError) else FORM


def _read_lines(data: bytes, problems: Problems) -> list[_Entry]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.add(
            f"not valid UTF-8 (byte {error.object[error.start]:#04x})", line=data.count(b"\n", 0, error.start) + 1
        )
        return []
    entries: list[_Entry] = []
    with_slots: dict[tuple[str, str | None], bool] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = _SPACED_EQUALS.sub("=", line.partition("#")[0]).split()
        if not words:
            continue
        try:
            found = [_read_line(host, words[1:]) for host in _expand(words[0])]
        except _PortError as error:
            problems.add(f"{error}. {error.hint}", line=number)
            continue
        except ValueError as error:
            problems.add(str(error), line=number)
            continue
        for entry in found:
            login = entry.host.login
            if login in with_slots and (entry.has_slots or with_slots[login]):
                problems.add(f"{entry.host.hostname} is listed twice, and slots= cannot be added up", line=number)
            with_slots[login] = entry.has_slots
        entries += found
    return entries


def _expand(text: str) -> list[str]:
    """Return the hosts of Slurm's short form; another host is returned as is."""
    parts: list[list[str]] = []
    end = 0
    for found in _RANGES.finditer(text):
        parts += [[text[end : found.start()]], _numbers(found["ranges"])]
        end = found.end()
    parts.append([text[end:]])
    if math.prod(map(len, parts)) > MOST_HOSTS:
        raise ValueError(f"{text!r:.300} names more than {MOST_HOSTS} hosts")
    return ["".join(each) for each in itertools.product(*parts)]


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of ``01-16,20``, each padded like the first of its range."""
    numbers: list[str] = []
    for each in ranges.split(","):
        first, dash, last = each.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) < int(first):
            raise ValueError(f"[{ranges}] is not a list of ranges such as [01-16,20]")
        if int(last or first) - int(first) >= MOST_HOSTS:
            raise ValueError(f"[{ranges}] names more than {MOST_HOSTS} hosts")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return numbers


def _read_line(first: str, settings: list[str]) -> _Entry:
    entry = _read_entry(first)
    for setting in settings:
        key, separator, value = setting.partition("=")
        if key not in _WORDS or not separator:
            raise ValueError(f"{setting!r:.100} is not valid; a line is {LINE_FORM.partition(': ')[2]}")
        entry = _apply(entry, _WORDS[key], value)
    return entry


def _apply(entry: _Entry, meaning: str, value: str) -> _Entry:
    host = entry.host
    if meaning == "slots":
        if host.processes is not None:
            raise ValueError(f"{host.hostname} has two numbers of processes; keep one of them")
        return _Entry(replace(host, processes=_read_count(value)), has_slots=True)
    if meaning == "user":
        username = _checked(value, forms.USERNAME, "the user")
        if host.username not in {None, username}:
            raise ValueError(f"{host.hostname} has two users, {host.username} and {username}; keep one of them")
        return replace(entry, host=replace(host, username=username))
    return entry


def _read_entry(text: str) -> _Entry:
    found = _ENTRY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.300} is not a host; put IPv6 addresses in brackets")
    host = forms.plain_host(_checked(found["host"], forms.HOSTNAME, "the host"))
    user = found["user"]
    username = None if user is None else _checked(user, forms.USERNAME, "the user")
    count = None if found["count"] is None else _read_count(found["count"])
    if count is not None and (count > MOST_PROCESSES or count == SSH_PORT):
        raise _PortError(found["host"], count)
    return _Entry(ListedHost(host, username, count))


def _read_count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) == 0:
        raise ValueError(f"the number of processes must be a positive whole number, found {text!r:.100}")
    return int(text)


def _checked(text: str, form: forms.Validator, what: str) -> str:
    if not form.accepts(text):
        raise ValueError(f"{what} must be {form.expected}, found {text!r:.300}")
    return text


def _together(entries: Iterable[_Entry]) -> tuple[ListedHost, ...]:
    """Return each host once, in order of first mention; repeated mentions without a number count one each."""
    hosts: dict[tuple[str, str | None], ListedHost] = {}
    for each in entries:
        known = hosts.get(each.host.login)
        if known is None:
            hosts[each.host.login] = each.host
        else:
            count = (known.processes or 1) + (each.host.processes or 1)
            hosts[each.host.login] = replace(known, processes=count)
    return tuple(hosts.values())
