"""Which files of a project are sent: chosen by rsync's own rules, less what must never leave this machine."""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from remote_tool.errors import SyncError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Never sent, whatever exclude.txt says.
PRIVATE = (".remote", ".git", ".jobs", ".remote-scripts", ".netrc", ".aws", ".ssh", ".env", ".env.*")
# Examples of a .env hold no secrets, and people share them on purpose.
HARMLESS = (".env.example", ".env.sample", ".env.template")
# Files with these names are looked into; only those that are private keys stay here.
KEY_NAMES = ("id_*", "*.pem", "*.key", "*_key", "*key*.txt", "private_key*", "*.ppk", "*_rsa", "*_ed25519", "*_ecdsa")
KEY_MARKS = (b"PRIVATE KEY-----", b"PuTTY-User-Key-File")
LARGEST_KEY = 64 * 1024
LISTING_SECONDS = 600.0
_ESCAPED = re.compile(rb"\\#([0-7]{3})")


@dataclass(frozen=True)
class Entry:
    """One file, link or folder.

    Attributes:
        name: Relative to the project, bytes as the file system has them; a folder's ends with a slash.
        size: Bytes; of a link, the length of its target; of a folder, 0.
        modified: Seconds since the epoch; of a folder, 0.
        mode: Permission bits.
    """

    name: bytes
    size: int
    modified: int
    mode: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith(b"/")

    @property
    def record(self) -> bytes:
        """As the server's list of sent files has it, ended by NUL."""
        return b"%d %d %b\0" % (self.size, self.modified, self.name)


@dataclass(frozen=True)
class Snapshot:
    """What a sync sends.

    Attributes:
        root: The project folder.
        entries: In rsync's order.
        skipped: What is left out although no rule of the user says so: name and why.
        id: The same for the same names, sizes, times and permissions.
    """

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[tuple[str, str], ...]
    id: str

    @property
    def sent_list(self) -> bytes:
        return b"".join(entry.record for entry in self.entries)

    @property
    def file_count(self) -> int:
        return sum(not entry.is_folder for entry in self.entries)


async def take_snapshot(root: Path, exclude_file: Path, private_keys: Iterable[Path] = ()) -> Snapshot:
    """List what is to be sent.

    Args:
        root: The project folder.
        exclude_file: The user's rsync patterns; may be missing.
        private_keys: Files that are never sent, wherever they lie.

    Raises:
        SyncError: rsync is missing here, or does not list the folder.
    """
    with tempfile.TemporaryDirectory(prefix="remote-tool-") as folder:
        rules = Path(folder) / "rules"
        rules.write_bytes(_rules(exclude_file))
        names, complaints = await _list_names(root, rules, Path(folder) / "empty")
    return await asyncio.to_thread(_look, root, names, complaints, {key.resolve() for key in private_keys})


def local_rsync() -> str:
    """Return the rsync program of this machine.

    Raises:
        SyncError: There is none.
    """
    found = shutil.which("rsync")
    if found is None:
        hint = "brew install rsync" if os.uname().sysname == "Darwin" else "sudo apt-get install rsync"
        raise SyncError("rsync is missing on this machine", hint=hint)
    return found


@cache
def is_gnu_rsync(program: str, version: str) -> bool:
    """Tell from its version text whether a program is the original rsync; macOS has another with fewer options."""
    return program != "" and version.startswith("rsync ")


async def rsync_version(program: str) -> str:
    """Return the first line of ``rsync --version``."""
    process = await asyncio.create_subprocess_exec(
        program, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace").partition("\n")[0]


def _rules(exclude_file: Path) -> bytes:
    """Return filter rules: ours first, so that they win; a lone ``!`` would clear them, so it is dropped."""
    ours = [b"+ " + name.encode() for name in HARMLESS] + [b"- " + name.encode() for name in PRIVATE]
    try:
        lines = exclude_file.read_bytes().splitlines()
    except FileNotFoundError:
        lines = []
    theirs = [line.strip(b"\r\n") for line in lines]
    kept = [line for line in theirs if line.strip() and line.strip() != b"!" and not line.startswith((b"#", b";"))]
    return b"\n".join([*ours, *kept]) + b"\n"


async def _list_names(root: Path, rules: Path, empty: Path) -> tuple[list[bytes], list[bytes]]:
    """Have rsync say what it would send into an empty folder."""
    program = local_rsync()
    form = ["--out-format=%n"] if is_gnu_rsync(program, await rsync_version(program)) else ["-v"]
    # A trailing slash sends what is inside; the destination does not exist, and with -n never will.
    command = [program, "-rln", *form, f"--exclude-from={rules}", f"{root}/", f"{empty}/"]
    environment = {**os.environ, "LC_ALL": "C"}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(LISTING_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        raise SyncError(f"Listing {root} took longer than {LISTING_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in {0, 23, 24}:
        text = errors.decode(errors="replace").strip()
        raise SyncError(f"rsync cannot list {root} (status {process.returncode}): {text}")
    return [_unescape(line) for line in output.split(b"\n") if line], errors.splitlines()


def _unescape(name: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), name)


def _look(root: Path, names: Sequence[bytes], complaints: Sequence[bytes], keys: set[Path]) -> Snapshot:
    entries: list[Entry] = []
    skipped = [(line.decode(errors="replace"), "") for line in complaints if b"rsync error" not in line]
    base = os.fsencode(root)
    for name in names:
        if name == b"./" or name.startswith(b"skipping non-regular file "):
            if name != b"./":
                quoted = name.removeprefix(b"skipping non-regular file ").strip(b'"')
                skipped.append((os.fsdecode(quoted), "is no regular file"))
            continue
        path = os.path.join(base, name.rstrip(b"/"))
        try:
            found = os.lstat(path)
        except OSError:
            continue
        why = _reason_to_skip(base, name, path, found, keys)
        if why:
            skipped.append((os.fsdecode(name), why))
        else:
            entries.append(_entry(name, found))
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(b"%o " % entry.mode + entry.record)
    return Snapshot(root, tuple(entries), tuple(skipped), digest.hexdigest()[:32])


def _entry(name: bytes, found: os.stat_result) -> Entry:
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        return Entry(name.rstrip(b"/") + b"/", 0, 0, mode)
    return Entry(name, found.st_size, int(found.st_mtime // 1), mode)


def _reason_to_skip(root: bytes, name: bytes, path: bytes, found: os.stat_result, keys: set[Path]) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "" if _stays_inside(root, name, os.readlink(path)) else "is a link that leads out of the project"
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        return "is no regular file"
    if stat.S_ISREG(found.st_mode) and _is_private_key(path, found.st_size, keys):
        return "is a private key"
    return ""


def _stays_inside(root: bytes, name: bytes, target: bytes) -> bool:
    if target.startswith(b"/"):
        return False
    resolved = os.path.normpath(os.path.join(root, os.path.dirname(name), target))
    return resolved == root or resolved.startswith(root + b"/")


def _is_private_key(path: bytes, size: int, keys: set[Path]) -> bool:
    if keys and Path(os.fsdecode(path)).resolve() in keys:
        return True
    base = os.fsdecode(os.path.basename(path))
    if size > LARGEST_KEY or not any(fnmatch.fnmatch(base, pattern) for pattern in KEY_NAMES):
        return False
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_KEY)
    except OSError:
        return False
    return any(mark in text for mark in KEY_MARKS)
