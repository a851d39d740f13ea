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

from remote_tool.transport.kept.folder import write_private
from remote_tool.transport.kept.record import (
    Record,
    decisions,
    has_wildcard,
    included_files,
    read_record,
    watched_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.transport.host import Login
    from remote_tool.transport.kept.folder import Place
    from remote_tool.transport.ssh.context import Hop
    from remote_tool.transport.ssh.endpoint import Endpoint

# Ends a master that is not logged in by then; one that is has forked, and the child has no alarm.
START_SECONDS = 60
CONNECT_SECONDS = 15
PAUSE_SECONDS = 300
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
            if (known is None or not known.is_usable) and not _failed_lately(turn):
                os.ftruncate(turn, 0)
                _start(program, place, wanted, turn)
        finally:
            os.close(turn)


def _failed_lately(turn: int) -> bool:
    """Return whether the last ssh wrote why it failed; a server may lock out those who fail often."""
    status = os.fstat(turn)
    return status.st_size > 0 and abs(time.time() - status.st_mtime) < PAUSE_SECONDS


def _start(program: str, place: Place, wanted: Wanted, turn: int) -> None:
    socket, hops = place.new_socket(), wanted.hops
    write_private(place.known_hosts, "".join(f"hop{number} {hop.host_key.text}\n" for number, hop in enumerate(hops)))
    write_private(place.config, "".join(f"{line}\n" for line in _config(place, hops, wanted.seconds)))
    for number, hop in enumerate(hops):
        write_private(place.public_key(number), f"{hop.public_key}\n")
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
    files = [*endpoint.config_files, *included_files(endpoint)]
    text = "\n".join(file.read_text(errors="replace") for file in files).lower()
    # Commands and variables can change while no file does, and so can folders that a wildcard chooses.
    folders = any(has_wildcard(path.parent) for path in endpoint.included)
    return not folders and "exec" not in text.replace("=", " ").split() and "${" not in text


def _config(place: Place, hops: Sequence[Hop], seconds: int) -> Iterator[str]:
    for number, hop in enumerate(hops):
        endpoint = hop.endpoint
        yield f"Host hop{number}"
        yield config_line("HostName", endpoint.host)
        yield config_line("Port", str(endpoint.port))
        yield config_line("User", endpoint.username)
        yield config_line("HostKeyAlias", f"hop{number}")
        yield config_line("IdentityFile", str(hop.key_file or place.public_key(number)))
        yield config_line("IdentityAgent", "none" if hop.key_file else endpoint.identity.agent)
        # ssh would choose by its own order, which is not by speed.
        yield config_line("Ciphers", hop.cipher)
        yield config_line("ServerAliveInterval", str(ceil(endpoint.keepalive_seconds)))
        yield config_line("ServerAliveCountMax", str(min(endpoint.keepalive_count, 1000)))
        if number:
            yield config_line("ProxyJump", f"hop{number - 1}")
        if number == len(hops) - 1:
            yield config_line("ControlPersist", str(seconds))
    yield "Host *"
    yield config_line("UserKnownHostsFile", str(place.known_hosts))
    for option, value in FIXED_OPTIONS.items():
        yield config_line(option, value)


def config_line(option: str, *values: str) -> str:
    """Return a line of ssh_config.

    Raises:
        UnsuitableError: The file format cannot represent a value.
    """
    for value in values:
        if not value.isprintable() or any(letter in value for letter in "\"\\'") or "${" in value:
            raise UnsuitableError(value)
        # ssh expands percent signs, in the name of a user only since OpenSSH 10.
        if option == "User" and "%" in value:
            raise UnsuitableError(value)
    return " ".join([option, *('"' + value.replace("%", "%%") + '"' for value in values)])
