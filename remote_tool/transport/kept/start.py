"""Start a master for a successful login: a separate ssh with exactly the settings of that login."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.transport.kept.record import Record, decisions, read_record, watched_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.transport.kept.folder import Place
    from remote_tool.transport.login import Login
    from remote_tool.transport.ssh.context import Hop
    from remote_tool.transport.ssh.endpoint import Endpoint

# Ends a master that is not logged in by then; one that is has forked, and the child has no alarm.
START_SECONDS = 60
CONNECT_SECONDS = 15
# An alarm outlives exec.
_ALARM = f"import os, signal, sys; signal.alarm({START_SECONDS}); os.execv(sys.argv[1], sys.argv[1:])"
_WITH_ALARM = (sys.executable, "-I", "-S", "-c", _ALARM)
# The generated file is the only configuration that this ssh reads.
FIXED_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "UpdateHostKeys": "no",
    "VerifyHostKeyDNS": "no",
    "CheckHostIP": "no",
    "CanonicalizeHostname": "no",
    "PreferredAuthentications": "publickey",
    "IdentitiesOnly": "yes",
    "AddKeysToAgent": "no",
    "GSSAPIAuthentication": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "Tunnel": "no",
    "Compression": "no",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ConnectionAttempts": "1",
    "LogLevel": "ERROR",
}


class UnsuitableError(ValueError):
    """A login that ssh cannot repeat exactly."""


@dataclass(frozen=True)
class Wanted:
    """A login to keep.

    Attributes:
        hops: The logins to the jump hosts and the server; empty if they cannot be repeated.
        login: How the login was authenticated.
        project: The project folder.
        known_hosts: Our own file of host keys.
        seconds: How long the master waits for the next session.
    """

    hops: Sequence[Hop]
    login: Login
    project: Path
    known_hosts: Path
    seconds: int


def start_master(place: Place, wanted: Wanted) -> None:
    """Start a master for a login, unless one exists or is being started; does not wait for it."""
    program = shutil.which("ssh")
    with suppress(OSError, UnsuitableError):
        if program is None or not wanted.hops or not all(_is_plain(hop.endpoint) for hop in wanted.hops):
            return
        place.make()
        turn = place.start_lock()
        if turn is None:
            return
        try:
            known = read_record(place)
            if known is None or not known.is_usable:
                _start(program, place, wanted, turn)
        finally:
            os.close(turn)


def _start(program: str, place: Place, wanted: Wanted, turn: int) -> None:
    socket, hops = place.new_socket(), wanted.hops
    _write(place.known_hosts, [f"hop{number} {hop.host_key.text}" for number, hop in enumerate(hops)])
    _write(place.config, list(_config(place, hops, wanted.seconds)))
    for number, hop in enumerate(hops):
        _write(place.public_key(number), [hop.public_key])
    record = Record(
        project=str(wanted.project),
        server=hops[-1].endpoint.server,
        socket=socket,
        since=time.time(),
        login=replace(wanted.login, is_new=False),
        address=hops[-1].endpoint.address,
        hosts=decisions(hops, wanted.known_hosts),
        watched=watched_files(hops),
    )
    record.write(place)
    # ssh closes its stderr once it is logged in or has failed, which releases the lock.
    process = subprocess.Popen(
        [*_WITH_ALARM, program, "-F", str(place.config), "-M", "-N", "-f", "-S", str(socket), f"hop{len(hops) - 1}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=turn,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home()), "LC_ALL": "C"},
        start_new_session=True,
    )
    # Leaves no zombie if it ends before this program does.
    threading.Thread(target=process.wait, name="start a master", daemon=True).start()


def _is_plain(endpoint: Endpoint) -> bool:
    """Return whether our own values determine the login completely."""
    if endpoint.has_proxy_command or endpoint.other_options or endpoint.trust.ignored:
        return False
    # Included files, commands and variables can change while this file does not.
    text = "\n".join(file.read_text(errors="replace") for file in endpoint.config_files).lower()
    words = text.replace("=", " ").split()
    return "include" not in words and "exec" not in words and "${" not in text


def _config(place: Place, hops: Sequence[Hop], seconds: int) -> Iterator[str]:
    for number, hop in enumerate(hops):
        endpoint = hop.endpoint
        yield f"Host hop{number}"
        yield _line("HostName", endpoint.host)
        yield _line("Port", str(endpoint.port))
        yield _line("User", endpoint.username)
        yield _line("HostKeyAlias", f"hop{number}")
        yield _line("IdentityFile", str(hop.key_file or place.public_key(number)))
        yield _line("IdentityAgent", "none" if hop.key_file else endpoint.identity.agent)
        yield _line("ServerAliveInterval", str(ceil(endpoint.keepalive_seconds)))
        yield _line("ServerAliveCountMax", str(min(endpoint.keepalive_count, 1000)))
        if number:
            yield _line("ProxyJump", f"hop{number - 1}")
        if number == len(hops) - 1:
            yield _line("ControlPersist", str(seconds))
    yield "Host *"
    yield _line("UserKnownHostsFile", str(place.known_hosts))
    for option, value in FIXED_OPTIONS.items():
        yield _line(option, value)


def _line(option: str, value: str) -> str:
    """Return a line of ssh_config.

    Raises:
        UnsuitableError: The file format cannot represent this value.
    """
    if not value.isprintable() or any(letter in value for letter in "\"\\'") or "${" in value:
        raise UnsuitableError(value)
    # ssh expands percent signs, except in these options.
    shown = value if option in {"User", "HostKeyAlias", "ProxyJump"} else value.replace("%", "%%")
    return f'{option} "{shown}"'


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
