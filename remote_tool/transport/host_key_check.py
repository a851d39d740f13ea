"""The decision about the key that a server shows, before anything secret is sent to it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from remote_tool.config.model import HostKeyPolicy
from remote_tool.errors import HostKeyError
from remote_tool.transport.known_hosts import (
    Answer,
    HostKey,
    Marker,
    Reader,
    UnusableFileError,
    Verdict,
    accept,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote_tool.transport.endpoint import Endpoint

# Those of a stock OpenSSH; SHA-1 signatures and DSA are not among them.
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


class HostKeyRules:
    """What holds for every host of a command.

    Args:
        file: Where new keys are recorded, and looked up besides the user's own files.
        policy: What happens at the first contact.
        notice: Tells the user something, for a server.
    """

    def __init__(self, file: Path, policy: HostKeyPolicy, notice: Callable[[str, str], None]) -> None:
        self.file = file
        self.policy = policy
        self.notice = notice
        self.reader = Reader(lambda text: notice("", text))


class HostKeyCheck:
    """Knows what the files say of one host when it is made, and decides about the keys it shows.

    Raises:
        HostKeyError: The file of revoked keys cannot be used.
    """

    def __init__(self, endpoint: Endpoint, rules: HostKeyRules) -> None:
        self._endpoint = endpoint
        self._rules = rules
        self._names = endpoint.trust.names
        self._accepted: HostKey | None = None
        self._is_new = False
        for option in endpoint.trust.ignored:
            text = f"{option} of ~/.ssh/config is not used; the host key must be in a known_hosts file"
            rules.notice(endpoint.server, text)
        try:
            self._known = rules.reader.read((*endpoint.trust.files, rules.file), endpoint.trust.revoked)
        except UnusableFileError as error:
            raise HostKeyError(f"{endpoint.title}: {error}", server=endpoint.server) from None

    @property
    def accepted(self) -> HostKey | None:
        """The key that the host showed and may show; None before, and where a certificate vouches for it."""
        return self._accepted

    @property
    def is_new(self) -> bool:
        """Whether no file had that key."""
        return self._is_new

    def algorithms(self) -> list[str]:
        """Return what to ask for: first the types of key that we know, lest the server shows another of its keys."""
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
        """Return the keys that must not be inside a certificate, where certificates count."""
        return self._known.revoked_keys(self._names) if self._authorities() else set()

    def is_authority(self, key: HostKey) -> bool:
        """Tell whether a key may sign certificates of this host."""
        return key in self._authorities()

    def require(self, key: HostKey) -> None:
        """Return if the host may show this key; a new one is recorded first.

        Raises:
            HostKeyError: It may not, with the key we know and the key it shows.
        """
        if key == self._accepted:  # keys are exchanged again in the middle of long connections
            return
        answer = self._known.check(self._names, key)
        if answer.verdict is Verdict.NEW:
            answer = self._accept(key)
        if answer.verdict is not Verdict.KNOWN:
            raise self._refusal(key, answer)
        self._accepted = key

    def _authorities(self) -> set[HostKey]:
        return {entry.key for entry in self._known.select(self._names, Marker.AUTHORITY)}

    def _accept(self, key: HostKey) -> Answer:
        endpoint = self._endpoint
        if self._rules.policy is HostKeyPolicy.STRICT or endpoint.trust.strict:
            raise self._error(
                f"is not known: {key.kind} {key.fingerprint}",
                hint=f"Compare it with the server's own, then log in once by hand: {endpoint.ssh_command}",
            )
        try:
            answer = accept(self._rules.file, self._names[0], key)
        except UnusableFileError as error:
            raise HostKeyError(f"{endpoint.title}: {error}", server=endpoint.server) from None
        if answer.verdict is not Verdict.NEW:
            return answer
        self._is_new = True
        self._rules.notice(endpoint.server, f"new host key of {endpoint.address} accepted: {key.fingerprint}")
        return Answer(Verdict.KNOWN)

    def _refusal(self, key: HostKey, answer: Answer) -> HostKeyError:
        shown = f"{key.kind} {key.fingerprint}"
        if answer.verdict is Verdict.REVOKED:
            hint = "Do not log in: ask who runs the server for its new key"
            return self._error(f"is revoked: {shown}", hint=hint)
        old = ", ".join(
            f"{entry.key.kind} {entry.key.fingerprint} ({entry.file}:{entry.line})" for entry in answer.entries
        )
        name, file = shlex.quote(self._names[0]), shlex.quote(str(answer.entries[0].file))
        return self._error(
            f"has changed: known is {old}; it shows {shown}. Somebody may be listening in",
            hint=f"If the server was set up anew: ssh-keygen -R {name} -f {file}",
        )

    def _error(self, what: str, hint: str) -> HostKeyError:
        endpoint = self._endpoint
        message = f"The host key of {endpoint.title} ({endpoint.address}) {what}"
        return HostKeyError(message, hint=hint, server=endpoint.server)
