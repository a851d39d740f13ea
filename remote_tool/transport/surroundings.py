"""What the connections of a command have in common; apart from them, since to load the SSH library takes a while."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.transport.passwords import Passphrases
from remote_tool.transport.shared import Shared

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from remote_tool.transport.asking import Asker
    from remote_tool.transport.host_key_check import HostKeyRules
    from remote_tool.transport.passwords import CommonPasswords
    from remote_tool.transport.ssh_host import Connection


@dataclass(frozen=True)
class Surroundings:
    """What every connection of a command shares.

    Attributes:
        rules: Which host keys are taken.
        asker: Asks the user for secrets.
        trace: Tells ``-v`` how long something took, in seconds, on a server.
        common_passwords: Those that are asked for once for several servers.
        jumps: The connections to jump hosts; servers behind the same one share it.
        logins: How many may log in at once, for each address as seen from its jump host; several names may lead there.
        passphrases: Of key files, as far as they are known.
    """

    rules: HostKeyRules
    asker: Asker
    trace: Callable[[str, str, float], None]
    common_passwords: CommonPasswords
    jumps: Shared[tuple[str, ...], Connection] = field(default_factory=Shared)
    logins: dict[tuple[Connection | None, str], asyncio.Semaphore] = field(default_factory=dict)
    passphrases: Passphrases = field(default_factory=Passphrases)
