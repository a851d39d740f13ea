"""Start a master for a successful login: an ssh with exactly the settings of that login."""

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
    accepted_host_keys,
    has_wildcard,
    included_files,
    read_record,
    watched_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remote_tool.transport.host import Login
    from remote_tool.transport.kept.folder import KeptFolder
    from remote_tool.transport.ssh.context import Hop
    from remote_tool.transport.ssh.endpoint import Endpoint

# Ends a master that has not logged in by then; after the login, it has forked, and the child has no alarm.
START_SECONDS = 60
CONNECT_SECONDS = 15
PAUSE_SECONDS = 300
# An alarm survives exec.
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
    """ssh cannot repeat a login exactly."""


@dataclass(frozen=True)
class LoginToKeep:
    """A login for a master to repeat.

    Attributes:
        hops: The logins to the jump hosts and the server; empty if they cannot be repeated.
        login: How the login was authenticated.
        project: The project folder.
        known_hosts: Our own file of host keys.
        seconds: The time that the master waits for another session.
    """

    hops: Sequence[Hop]
    login: Login
    project: Path
    known_hosts: Path
    seconds: int


def start_master(folder: KeptFolder, login: LoginToKeep) -> None:
    """Start a master for a login, without waiting for it, unless one exists or is being started."""
    program = shutil.which("ssh")
    with suppress(OSError, UnsuitableError):
        if program is None or not login.hops or not all(_is_repeatable(hop.endpoint) for hop in login.hops):
            return
        folder.create()
        log = folder.start_lock()
        if log is None:
            return
        try:
            record = read_record(folder)
            if (record is None or not record.is_usable) and not _failed_lately(log):
                os.ftruncate(log, 0)
                _start(program, folder, login, log)
        finally:
            os.close(log)


def _failed_lately(log: int) -> bool:
    """Return whether the last start has logged an error; a server may lock out a user who fails often."""
    status = os.fstat(log)
    return status.st_size > 0 and abs(time.time() - status.st_mtime) < PAUSE_SECONDS


def _start(program: str, folder: KeptFolder, login: LoginToKeep, log: int) -> None:
    socket, hops = folder.new_socket(), login.hops
    write_private(folder.known_hosts, "".join(f"hop{number} {hop.host_key.text}\n" for number, hop in enumerate(hops)))
    write_private(folder.config, "".join(f"{line}\n" for line in _config(folder, hops, login.seconds)))
    for number, hop in enumerate(hops):
        write_private(folder.public_key(number), f"{hop.public_key}\n")
    record = Record(
        project=str(login.project),
        server=hops[-1].endpoint.server,
        socket=socket,
        since=time.time(),
        login=replace(login.login, is_new=False),
        address=hops[-1].endpoint.address,
        hosts=accepted_host_keys(hops, login.known_hosts),
        watched=watched_files(hops),
    )
    record.write(folder)
    # The lock is released when ssh closes its stderr: once it is logged in, or has failed.
    process = subprocess.Popen(
        [*_WITH_ALARM, program, "-F", str(folder.config), "-M", "-N", "-f", "-S", str(socket), f"hop{len(hops) - 1}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home()), "LC_ALL": "C"},
        start_new_session=True,
    )
    # Otherwise a master that ends before this program would remain as a zombie.
    threading.Thread(target=process.wait, name="start a master", daemon=True).start()


def _is_repeatable(endpoint: Endpoint) -> bool:
    """Return whether the values of an endpoint determine its login completely."""
    if endpoint.has_proxy_command or endpoint.other_options or endpoint.trust.ignored:
        return False
    files = [*endpoint.config_files, *included_files(endpoint)]
    text = "\n".join(file.read_text(errors="replace") for file in files).lower()
    # Commands, variables, and folders that match a wildcard can change while all files are the same.
    has_folder_wildcard = any(has_wildcard(path.parent) for path in endpoint.included)
    return not has_folder_wildcard and "exec" not in text.replace("=", " ").split() and "${" not in text


def _config(folder: KeptFolder, hops: Sequence[Hop], seconds: int) -> Iterator[str]:
    for number, hop in enumerate(hops):
        endpoint = hop.endpoint
        yield f"Host hop{number}"
        yield config_line("HostName", endpoint.host)
        yield config_line("Port", str(endpoint.port))
        yield config_line("User", endpoint.username)
        yield config_line("HostKeyAlias", f"hop{number}")
        yield config_line("IdentityFile", str(hop.key_file or folder.public_key(number)))
        yield config_line("IdentityAgent", "none" if hop.key_file else endpoint.identity.agent)
        # The cipher that ssh prefers is not the fastest.
        yield config_line("Ciphers", hop.cipher)
        yield config_line("ServerAliveInterval", str(ceil(endpoint.keepalive_seconds)))
        yield config_line("ServerAliveCountMax", str(min(endpoint.keepalive_count, 1000)))
        if number:
            yield config_line("ProxyJump", f"hop{number - 1}")
        if number == len(hops) - 1:
            yield config_line("ControlPersist", str(seconds))
    yield "Host *"
    yield config_line("UserKnownHostsFile", str(folder.known_hosts))
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
        # In the name of a user, only OpenSSH 10 and newer expand percent signs.
        if option == "User" and "%" in value:
            raise UnsuitableError(value)
    return " ".join([option, *('"' + value.replace("%", "%%") + '"' for value in values)])
