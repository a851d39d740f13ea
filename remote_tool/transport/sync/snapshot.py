"""Which files of a project are sent: chosen by rsync's own rules, less what must never leave this machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import stat
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from remote_tool.errors import SyncError
from remote_tool.system.programs import Question, ask_program
from remote_tool.transport.sync.last_sync import KnownCopy, Version
from remote_tool.transport.sync.local_rsync import LocalRsync, environment, find_local_rsync, scratch_file, unescape
from remote_tool.transport.sync.secrets import (
    MAY_HOLD_SECRETS,
    OWN_FOLDERS,
    PRIVATE_KEY,
    SECRET_RULES,
    Looked,
    identities,
    is_listed,
    secret_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LISTING_SECONDS = 600.0
SECOND = 1_000_000_000
LEADS_OUT = "is a link that points outside the project"
VANISHED_HERE = (23, 24)
_NOT_REGULAR = re.compile(rb'skipping non-regular file "(.*)"', re.DOTALL)
_COMPLAINT = re.compile(rb"rsync: (?:\[\w+\] )?(.*)", re.DOTALL)
_LINE_END = re.compile(rb"\r\n|\n|\r")
# Of the permission bits: setuid, setgid and sticky do not travel.
_ARRIVING = 0o777
_LINK = stat.S_IFLNK | 0o777
_TRAILING_BLANKS = re.compile(rb"(?<!\\)[ \t]+\Z")


class Entry(NamedTuple):
    """One file, link or folder.

    Attributes:
        name: Relative to the project, bytes as the file system has them; a folder's ends with a slash.
        size: Bytes; of a link, the length of its target; of a folder, 0.
        modified: Seconds since the epoch; of a folder, 0.
        mode: Permission bits.
        target: Where a link leads; empty for what is none.
        nanoseconds: The part of its time below a second, which rsync and servers do not compare.
    """

    name: bytes
    size: int
    modified: int
    mode: int
    target: bytes = b""
    nanoseconds: int = 0

    @property
    def is_folder(self) -> bool:
        return self.name.endswith(b"/")

    @property
    def record(self) -> bytes:
        """As the server's list of sent files has it, ended by NUL."""
        return b"%d %d %b\0" % (self.size, self.modified, self.name)

    @property
    def version(self) -> Version:
        return Version(self.size, self.modified, self.nanoseconds)

    @property
    def look(self) -> bytes:
        """What the server tells of it once it has arrived as it is here, ended by NUL; see :mod:`last_sync`."""
        if self.is_folder:
            return b"%x ./%b\0" % (stat.S_IFDIR | stat.S_IRWXU | self.mode & _ARRIVING, self.name)
        if self.target:
            return b"%x %d %d ./%b -> %b\0" % (_LINK, self.size, self.modified, self.name, self.target)
        return b"%x %d %d ./%b\0" % (stat.S_IFREG | self.mode & _ARRIVING, self.size, self.modified, self.name)


@dataclass(frozen=True)
class Snapshot:
    """What a sync sends.

    Attributes:
        root: The project folder.
        rules: Filter rules, ended by NUL each, with which rsync selects the entries again.
        entries: In rsync's order.
        skipped: What is left out although no rule of the user says so: name and why.
        id: The same for the same names, sizes, times and permissions.
    """

    root: Path
    rules: bytes = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    skipped: tuple[tuple[str, str], ...]
    id: str
    _changes: dict[KnownCopy, tuple[list[bytes], bytes]] = field(default_factory=dict, repr=False, compare=False)
    _comparing: Lock = field(default_factory=Lock, repr=False, compare=False)

    @cached_property
    def sent_list(self) -> bytes:
        return b"".join(entry.record for entry in self.entries)

    @cached_property
    def look(self) -> bytes:
        """What the server tells of all entries when it has them as they are here."""
        return b"".join(entry.look for entry in self.entries)

    @cached_property
    def fractions(self) -> bytes:
        """The nanoseconds of all entries, each ended by NUL."""
        return b"".join(b"%d\0" % entry.nanoseconds for entry in self.entries)

    @cached_property
    def copy(self) -> KnownCopy:
        """What a server has when a sync has ended well."""
        return KnownCopy(self.id, self.sent_list, self.look, self.fractions)

    def changes_since(self, copy: KnownCopy) -> tuple[list[bytes], bytes]:
        """Return the names that are to be sent now, and the records of what is not here as it was.

        That is worked out once: most servers have had the same.
        """
        with self._comparing:
            if copy not in self._changes:
                self._changes[copy] = self._compare(copy)
            return self._changes[copy]

    def _compare(self, copy: KnownCopy) -> tuple[list[bytes], bytes]:
        if self.id == copy.snapshot_id:
            return [], b""
        before = frozenset(zip(copy.look.split(b"\0"), copy.fractions.split(b"\0"), strict=False))
        now = frozenset(self.look.split(b"\0"))
        wanted = [entry.name for entry in self.entries if (entry.look[:-1], b"%d" % entry.nanoseconds) not in before]
        pairs = zip(copy.sent.split(b"\0"), copy.look.split(b"\0"), strict=False)
        return wanted, b"".join(record + b"\0" for record, look in pairs if look not in now)

    @cached_property
    def names(self) -> frozenset[bytes]:
        return frozenset(entry.name for entry in self.entries)

    @cached_property
    def secrets(self) -> tuple[bytes, ...]:
        """Files and folders that are held back because of what they hold."""
        return tuple(os.fsencode(name) for name, why in self.skipped if why in {PRIVATE_KEY, MAY_HOLD_SECRETS})

    @cached_property
    def file_count(self) -> int:
        return sum(not entry.is_folder for entry in self.entries)

    def rules_without(self, names: Iterable[bytes]) -> bytes:
        """Return the rules with which rsync leaves out these, too."""
        return _joined([b"/" + _literal(name) for name in sorted(names)]) + self.rules

    def differs(self, entry: Entry) -> bool:
        """Tell whether it has changed since; what is gone has not."""
        try:
            found = os.lstat(os.path.join(os.fsencode(self.root), entry.name))
        except OSError:
            return False
        return Version(found.st_size, *divmod(found.st_mtime_ns, SECOND)) != entry.version

    def has_here(self, name: bytes) -> bool:
        """Tell whether there is anything of this name now, whether it is sent or not."""
        return os.path.lexists(os.path.join(os.fsencode(self.root), name.rstrip(b"/")))


@dataclass(frozen=True)
class SelectionRules:
    """What is not sent.

    Attributes:
        exclude_file: The user's rsync patterns; may be missing.
        own_folders: Further folders of ours, relative to the project.
        private_keys: Files that are never sent, wherever they lie.
        send_anyway: Patterns of what is sent although it may hold secrets, or a private key.
        looked: Where it is kept which files were looked into; None: nowhere.
    """

    exclude_file: Path
    own_folders: tuple[str, ...] = ()
    private_keys: tuple[Path, ...] = ()
    send_anyway: tuple[str, ...] = ()
    looked: Path | None = None


async def take_snapshot(root: Path, rules: SelectionRules) -> Snapshot:
    """List what is to be sent.

    Raises:
        SyncError: rsync is missing here, or does not list the folder.
    """
    if not await asyncio.to_thread(root.is_dir):
        raise SyncError(f"The project folder {root} does not exist")
    rsync = await find_local_rsync()
    own, users = _own_rules(rules), await asyncio.to_thread(_users_rules, rules.exclude_file)
    output, complaints = await _list(rsync, root, _joined([*own, *users]))
    look = _Look(root, identities(rules.private_keys), Looked(rules.looked), rules.send_anyway)
    await asyncio.to_thread(look.at_all, rsync, output, complaints)
    # What a look has found is excluded by name, and what may appear in the next moment by its kind.
    left_out = [b"/" + _literal(name) for name in look.left_out]
    let_through = [b"+ /" + _literal(name) for name in look.let_through]
    return look.snapshot(_joined([*own, *let_through, *SECRET_RULES, *left_out, *users]))


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\0" for line in lines)


def _own_rules(rules: SelectionRules) -> list[bytes]:
    """Return the rules that come first, so that they win."""
    own = [name.encode() for name in OWN_FOLDERS]
    return own + [b"/" + _literal(os.fsencode(name).strip(b"/")) for name in rules.own_folders]


def _users_rules(file: Path) -> list[bytes]:
    """Return the user's patterns as rsync takes them; a lone ``!`` would clear all rules before it, so it goes."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SyncError(f"{file} cannot be read: {error.strerror}") from error
    return _clean_lines(text)


def _clean_lines(text: bytes) -> list[bytes]:
    lines = []
    for raw in _LINE_END.split(text.removeprefix(b"\xef\xbb\xbf")):
        # rsync takes a NUL for the end of a line; trailing blanks nobody sees.
        line = _TRAILING_BLANKS.sub(b"", raw.partition(b"\0")[0])
        if line and line != b"!" and not line.startswith((b"#", b";")):
            lines.append(line)
    return lines


def _literal(name: bytes) -> bytes:
    """Return a pattern that matches a name only; without wildcards rsync takes backslashes as they are."""
    return re.sub(rb"([*?\[\\])", rb"\\\1", name) if re.search(rb"[*?\[]", name) else name


async def _list(rsync: LocalRsync, root: Path, rules: bytes) -> tuple[bytes, bytes]:
    """Have rsync say what it would send into an empty folder."""
    nowhere = os.path.join(tempfile.gettempdir(), f"remote-tool-{secrets.token_hex(8)}")
    with scratch_file() as out:
        # A trailing slash sends what is inside; the destination does not exist, and with -n never will.
        question = Question(LISTING_SECONDS, environment(), stdin=rules, output=out, with_errors=True)
        command = (rsync.program, "-rln", "-0", "--exclude-from=-", *rsync.item_options, f"{root}/", f"{nowhere}/")
        try:
            answer = await ask_program(question, *command)
        except TimeoutError:
            raise SyncError(f"Listing {root} took longer than {LISTING_SECONDS:.0f} s") from None
        out.seek(0)
        output = out.read()
    if answer.status not in {0, *VANISHED_HERE}:
        text = answer.errors.decode(errors="replace").strip()
        raise SyncError(f"rsync cannot list {root} (status {answer.status}): {text}")
    return output, answer.errors


@dataclass
class _Look:
    """A look at each file that rsync would send."""

    root: Path
    private_keys: frozenset[tuple[int, int]]
    looked: Looked
    send_anyway: tuple[str, ...] = ()
    let_through: list[bytes] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: list[bytes] = field(default_factory=list)
    user: int = field(default_factory=os.geteuid)

    def __post_init__(self) -> None:
        self.base = os.path.join(os.fsencode(self.root), b"")

    def at_all(self, rsync: LocalRsync, output: bytes, complaints: bytes) -> None:
        for line in output.split(b"\n"):
            item = rsync.parse_item(line)
            if item is None:
                self._read_other(line)
            elif item.name not in {b"./", b"."}:
                self._look(item.name.rstrip(b"/"))
        for line in complaints.splitlines():
            found = _COMPLAINT.match(line)
            if found and not line.startswith(b"rsync error: "):
                self.skipped.setdefault(os.fsdecode(unescape(found[1])), "")
        self.looked.note()

    def snapshot(self, rules: bytes) -> Snapshot:
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(b"%o %d " % (entry.mode, entry.nanoseconds) + entry.record)
        return Snapshot(self.root, rules, tuple(self.entries), tuple(self.skipped.items()), digest.hexdigest()[:32])

    def _read_other(self, line: bytes) -> None:
        found = _NOT_REGULAR.fullmatch(line)
        if found:
            self._skip(unescape(found[1]), "is not a regular file")

    def _look(self, name: bytes) -> None:
        secret = secret_in(name, self.send_anyway)
        if secret is not None:
            self._skip(secret.name, secret.why)
            return
        if self.send_anyway and is_listed(name, self.send_anyway):
            self.let_through.append(name)
        path = self.base + name
        try:
            found = os.lstat(path)
            target = os.readlink(path) if stat.S_ISLNK(found.st_mode) else b""
            why = self._reason_to_skip(name, path, found, target)
        except OSError:
            return  # gone since rsync saw it
        if why:
            self._skip(name, why)
        elif stat.S_ISDIR(found.st_mode):
            self.entries.append(Entry(name + b"/", 0, 0, stat.S_IMODE(found.st_mode)))
        else:
            seconds, rest = divmod(found.st_mtime_ns, SECOND)
            self.entries.append(Entry(name, found.st_size, seconds, stat.S_IMODE(found.st_mode), target, rest))

    def _skip(self, name: bytes, why: str) -> None:
        shown = os.fsdecode(name)
        if shown not in self.skipped:
            self.skipped[shown] = why
            self.left_out.append(name)

    def _reason_to_skip(self, name: bytes, path: bytes, found: os.stat_result, target: bytes) -> str:
        if stat.S_ISLNK(found.st_mode):
            return "" if _stays_inside(name, target) else LEADS_OUT
        if stat.S_ISDIR(found.st_mode):
            return ""
        if not stat.S_ISREG(found.st_mode):
            return "is not a regular file"
        if (found.st_dev, found.st_ino) in self.private_keys:
            return PRIVATE_KEY
        if self.looked.is_private_key(path, found) and not is_listed(name, self.send_anyway):
            return PRIVATE_KEY
        return "" if self._is_readable(path, found) else "cannot be read"

    def _is_readable(self, path: bytes, found: os.stat_result) -> bool:
        own = found.st_uid == self.user and found.st_mode & stat.S_IRUSR
        return bool(own) or os.access(path, os.R_OK)


def _stays_inside(name: bytes, target: bytes) -> bool:
    """Tell whether a link leads to a place inside the project, by its text alone."""
    if target.startswith(b"/"):
        return False
    resolved = os.path.normpath(os.path.join(os.path.dirname(name) or b".", target))
    return resolved != b".." and not resolved.startswith(b"../")
