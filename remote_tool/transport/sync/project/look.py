"""Judge each file that rsync would send: some must never be sent."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_tool.transport.sync import secrets
from remote_tool.transport.sync.entries import Entry, see
from remote_tool.transport.sync.project.filter_rules import literal
from remote_tool.transport.sync.project.found_files import PLAIN
from remote_tool.transport.sync.secrets import PRIVATE_KEY, SECRET_RULES, is_listed, secret_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from remote_tool.transport.sync.entries import Seen
    from remote_tool.transport.sync.secrets import Looked

LEADS_OUT = "is a link that points outside the project"
NOT_REGULAR = "is not a regular file"
# Part of the key of recorded listings: with another format, all files are judged again.
_FORMAT = b"2"


@dataclass
class Look:
    """Judge the files of a project.

    Attributes:
        root: The project folder.
        private_keys: Files that are never sent, by device and inode.
        looked: Files that were searched for keys before.
        send_anyway: Patterns of files to send although they may hold secrets.
        let_through: Files that are sent because of these patterns.
        skipped: Names of files that are left out although no rule of the user says so, with reasons.
        left_out: Those of the skipped files that rsync must exclude.
    """

    root: Path
    private_keys: frozenset[tuple[int, int]]
    looked: Looked
    send_anyway: tuple[str, ...] = ()
    let_through: list[bytes] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: list[bytes] = field(default_factory=list)
    user: int = field(default_factory=os.geteuid)

    def __post_init__(self) -> None:
        self.base = os.path.join(os.fsencode(self.root), b"")

    def key(self, rules: Sequence[bytes]) -> str:
        """Return a digest of everything besides the files that affects how they are judged."""
        said = (_FORMAT, rules, sorted(self.private_keys), self.send_anyway, self.user, secrets.ALL_RULES, self.base)
        return hashlib.sha256(repr(said).encode()).hexdigest()

    def rules(self, own: Sequence[bytes], users: Sequence[bytes]) -> list[bytes]:
        """Return the rules with which rsync selects again when it sends.

        Skipped files are excluded by name; the patterns for secrets cover files that appear in the meantime.
        """
        left_out = [b"/" + literal(name) for name in self.left_out]
        let_through = [b"+ /" + literal(name) for name in self.let_through]
        return [*own, *let_through, *SECRET_RULES, *left_out, *users]

    def recall(self, skipped: Mapping[str, str], let_through: Iterable[bytes], touched: Collection[bytes]) -> None:
        """Take over the results of an earlier listing, except for the touched files."""
        for shown, why in skipped.items():
            if os.fsencode(shown) not in touched:
                self.skip(os.fsencode(shown), why)
        self.let_through += [name for name in let_through if name not in touched]

    def forget(self) -> None:
        """Drop all results."""
        for found in (self.let_through, self.skipped, self.left_out):
            found.clear()

    def changed_since(self, name: bytes, moment: int) -> bool:
        """Return whether a file, or the listing of a folder, has changed since; also true if it is gone."""
        try:
            return os.lstat(self.base + name).st_ctime_ns >= moment
        except OSError:
            return True

    def at(self, name: bytes) -> Entry | None:
        """Judge a file by its name; see :meth:`judge`."""
        try:
            return self.judge(see(self.base, name))
        except OSError:
            return None  # gone since rsync listed it

    def judge(self, found: Seen) -> Entry | None:
        """Return the entry of a file; None if it is not sent."""
        name = found.name
        secret = secret_in(name, self.send_anyway)
        if secret is not None:
            self.skip(secret.name, secret.why)
            return None
        if self.send_anyway and is_listed(name, self.send_anyway):
            self.let_through.append(name)
        if why := self._reason_to_skip(found):
            self.skip(name, why)
            return None
        return Entry.seen(found)

    def row_of(self, record: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Return the row of a regular file like :meth:`judge`, but much faster; None if :meth:`judge` has to decide."""
        found = PLAIN.fullmatch(record) if self.looked.searched and not self.send_anyway else None
        if found is None:
            return None
        name, mode, inode, device, user, *changed, second, rest, size = found.groups()
        permissions = int(mode, 8)
        is_readable = int(user) == self.user and permissions & stat.S_IRUSR
        if not is_readable or (int(device), int(inode)) in self.private_keys or secret_in(name) is not None:
            return None
        self.looked.assume_no_key(inode, size, second + rest, b"".join(changed))
        look = b"%x %b %b ./%b" % (stat.S_IFREG | permissions, size, second, name)
        return b"%b %b %b" % (size, second, name), look, b"%d" % int(rest)

    def skip(self, name: bytes, why: str) -> None:
        """Skip a file or folder."""
        shown = os.fsdecode(name)
        if shown not in self.skipped:
            self.skipped[shown] = why
            self.left_out.append(name)

    def complain(self, complaints: Iterable[bytes]) -> None:
        """Skip files that rsync could not read."""
        for complaint in complaints:
            self.skipped.setdefault(os.fsdecode(complaint), "")

    def holds_key(self, found: Seen) -> bool:
        """Return whether a regular file holds a private key, unless the user has asked to send it."""
        is_key = self.looked.is_private_key(self.base + found.name, found)
        return is_key and not is_listed(found.name, self.send_anyway)

    def _reason_to_skip(self, found: Seen) -> str:
        if stat.S_ISLNK(found.st_mode):
            return "" if _stays_inside(found.name, found.target) else LEADS_OUT
        if stat.S_ISDIR(found.st_mode):
            return ""
        if not stat.S_ISREG(found.st_mode):
            return NOT_REGULAR
        if (found.st_dev, found.st_ino) in self.private_keys or self.holds_key(found):
            return PRIVATE_KEY
        return "" if self._is_readable(found) else "cannot be read"

    def _is_readable(self, found: Seen) -> bool:
        own = found.st_uid == self.user and found.st_mode & stat.S_IRUSR
        return bool(own) or os.access(self.base + found.name, os.R_OK)


def _stays_inside(name: bytes, target: bytes) -> bool:
    """Return whether a link points inside the project, judging only by its target."""
    if target.startswith(b"/"):
        return False
    resolved = os.path.normpath(os.path.join(os.path.dirname(name) or b".", target))
    return resolved != b".." and not resolved.startswith(b"../")
