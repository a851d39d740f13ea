"""Accept or refuse the key of a host, before anything secret is sent."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remote_tool.config.model import HostKeyPolicy
from remote_tool.errors import HostKeyError
from remote_tool.transport.ssh.host_keys.entries import HostKey, Marker, UnusableFileError
from remote_tool.transport.ssh.host_keys.known_hosts import CheckResult, Verdict
from remote_tool.transport.ssh.host_keys.rules import NOTHING_SENT, NewKey, UnconfirmedKeyError

if TYPE_CHECKING:
    from remote_tool.transport.ssh.endpoint import Endpoint
    from remote_tool.transport.ssh.host_keys.rules import HostKeyRules

# The defaults of OpenSSH, which exclude SHA-1 signatures and DSA.
PLAIN_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
CERTIFICATE_ALGORITHMS = (
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
)
RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


class HostKeyCheck:
    """Loads the known keys of one host, and accepts or refuses the keys that it presents.

    Raises:
        HostKeyError: The file of revoked keys cannot be used.
    """

    def __init__(self, endpoint: Endpoint, rules: HostKeyRules) -> None:
        self._endpoint = endpoint
        self._rules = rules
        self._names = endpoint.trust.names
        self._accepted: HostKey | None = None
        self._new: NewKey | None = None
        for option in endpoint.trust.ignored:
            text = f"{option} in ~/.ssh/config is ignored; the host key must be in a known_hosts file"
            rules.notice(endpoint.server, text)
        try:
            self._known = rules.reader.read((*endpoint.trust.files, rules.file), endpoint.trust.revoked)
        except UnusableFileError as error:
            raise HostKeyError(f"{endpoint.title}: {error}", server=endpoint.server) from None

    @property
    def accepted(self) -> HostKey | None:
        """The accepted key of the host; None before that, and for a certificate."""
        return self._accepted

    @property
    def is_new(self) -> bool:
        """Return whether this command has recorded the accepted key."""
        return self._accepted is not None and (self._names[0], self._accepted) in self._rules.recorded

    def algorithms(self) -> list[str]:
        """Return the algorithms to request: types of known keys first, so that the server presents a known key."""
        known = [
            algorithm
            for name in self._names
            for entry in self._known.select([name], Marker.TRUSTED)
            for algorithm in (RSA_SIGNATURES if entry.key.kind == "ssh-rsa" else (entry.key.kind,))
            if algorithm in PLAIN_ALGORITHMS
        ]
        certificates = CERTIFICATE_ALGORITHMS if self._authorities() else ()
        return list(dict.fromkeys((*known, *certificates, *PLAIN_ALGORITHMS)))

    def revoked_for_certificates(self) -> set[HostKey]:
        """Return the revoked keys; empty if no certificate is accepted."""
        return self._known.revoked_keys(self._names) if self._authorities() else set()

    def is_authority(self, key: HostKey) -> bool:
        """Return whether a key may sign certificates of this host."""
        return key in self._authorities()

    def require(self, key: HostKey) -> None:
        """Accept the host's key; a new one is recorded by :meth:`record` after the login.

        Raises:
            HostKeyError: It is refused; the message has the known key and the presented one.
            UnconfirmedKeyError: It is new, and must be confirmed.
        """
        if key == self._accepted:  # a long connection exchanges keys repeatedly
            return
        result = self._known.check(self._names, key)
        if result.verdict is Verdict.NEW or self._has_only_forgotten_keys(result):
            self._accept_new(key)
        elif result.verdict is not Verdict.KNOWN:
            raise self._refusal(key, result)
        self._accepted = key

    def require_confirmed(self) -> None:
        """Refuse to send a password to a host with a new key.

        Raises:
            UnconfirmedKeyError: It is new, and not confirmed.
        """
        if self._new is not None:
            raise UnconfirmedKeyError(self._new, NOTHING_SENT)

    def record(self) -> None:
        """Record a new key, so that it is known next time.

        Raises:
            HostKeyError: It cannot be written, or another key was recorded meanwhile.
        """
        if self._new is None:
            self._record_own_line()
            return
        result = self._rules.record(self._new)
        if result.verdict not in {Verdict.NEW, Verdict.KNOWN}:
            raise self._refusal(self._new.key, result)
        self._new = None

    def _has_only_forgotten_keys(self, result: CheckResult) -> bool:
        """Return whether all other keys of the host belong to servers that have left the configuration."""
        return result.verdict in {Verdict.CHANGED, Verdict.DAMAGED} and all(
            map(self._rules.is_forgotten, result.entries)
        )

    def _record_own_line(self) -> None:
        """Record a known key for this server, too, if all its lines belong to other servers, which may leave."""
        if self._accepted is None:
            return
        new = NewKey(self._endpoint, self._accepted)
        entries = self._known.check(self._names, self._accepted).entries
        if entries and all(entry.file == self._rules.file and entry.note for entry in entries):
            notes = {entry.note for entry in entries}
            lacks_line = new.note not in notes if new.note else all(map(self._rules.is_forgotten, entries))
            if lacks_line and not self._endpoint.trust.hashes_names:
                self._rules.record(new)

    def _authorities(self) -> set[HostKey]:
        return {entry.key for entry in self._known.select(self._names, Marker.AUTHORITY)}

    def _accept_new(self, key: HostKey) -> None:
        """Accept a new key if the rules allow it.

        Raises:
            HostKeyError: They do not.
            UnconfirmedKeyError: They require confirmation before the login.
        """
        endpoint = self._endpoint
        if self._rules.policy is HostKeyPolicy.STRICT or endpoint.trust.strict:
            raise self._error(
                f"is not known: {key.kind} {key.fingerprint}",
                hint=f"Compare it with the server's own key, then log in once by hand: {endpoint.ssh_command}",
            )
        new = NewKey(endpoint, key)
        if endpoint.trust.asks:
            raise UnconfirmedKeyError(new, "and StrictHostKeyChecking in ~/.ssh/config is ask")
        self._new = new
        self._rules.add_unconfirmed(new)

    def _refusal(self, key: HostKey, result: CheckResult) -> HostKeyError:
        shown = f"{key.kind} {key.fingerprint}"
        if result.verdict is Verdict.REVOKED:
            hint = "Do not log in; ask the server's administrator for its new key"
            return self._error(f"is revoked: {shown}", hint=hint)
        old = ", ".join(
            f"{entry.key.kind} {entry.key.fingerprint} ({entry.file}:{entry.line})" for entry in result.entries
        )
        name, file = shlex.quote(self._names[0]), shlex.quote(str(result.entries[0].file))
        if result.verdict is Verdict.DAMAGED:
            line = result.entries[0].line
            return self._error(
                f"cannot be compared with the known one, as {file}:{line} is damaged; got {shown}",
                hint=f"Compare it with the server's own key, then remove the line: sed -i.bak {line}d {file}",
            )
        return self._error(
            f"has changed: expected {old}; got {shown}. Somebody may be intercepting the connection",
            hint=f"If the server was reinstalled: ssh-keygen -R {name} -f {file}",
        )

    def _error(self, reason: str, hint: str) -> HostKeyError:
        endpoint = self._endpoint
        message = f"The host key of {endpoint.title} ({endpoint.address}) {reason}"
        return HostKeyError(message, hint=hint, server=endpoint.server)
