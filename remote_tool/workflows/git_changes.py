"""The uncommitted changes of the files that were sent, as a patch with which a job's code can be made again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from remote_tool.redaction import redact
from remote_tool.transport.sync.secrets import holds_private_key, secret_in
from remote_tool.workflows.git_state import ask_git

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence
    from pathlib import Path

LARGEST = 1024 * 1024
LARGEST_LIST = 4 * 1024 * 1024
MOST_NAMES = 1000
# Seconds for each question; without an answer the changes are left out.
SECONDS = 5.0
_BEGINNING = re.compile(rb"^(?=diff --git )", re.MULTILINE)
# git quotes other names.
_PLAIN_NAME = re.compile(rb"[A-Za-z0-9._/@+=-][A-Za-z0-9._/@+= -]*")
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")
_DIFF = ("diff", "HEAD", "--relative", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", *_PREFIXES)


async def read_changes(root: Path, sent_among: Callable[[Collection[bytes]], set[bytes]]) -> bytes:
    """Return a patch from the commit to the sent files: changed, new and removed ones; empty if unknown.

    A file that is never sent is not in it, nor one that held a private key; a removed one is only named. Values of
    variables that are secret are hidden.

    Args:
        root: The project's folder.
        sent_among: Returns which of some names were sent.
    """
    changed = await _names(root, *_DIFF, "--name-only", "--diff-filter=d", "-z")
    removed = await _names(root, *_DIFF, "--name-only", "--diff-filter=D", "-z")
    new = await _names(root, "ls-files", "--others", "--exclude-standard", "-z")
    sent = sent_among([*changed, *new])
    named = [name for name in changed if name in sent]
    named += [name for name in removed if secret_in(name) is None]
    parts = [part async for part in _sections(root, named[:MOST_NAMES])]
    parts += [_as_new(root, name) for name in new if name in sent][:MOST_NAMES]
    patch = b"".join(part for part in parts if not _holds_key(part))
    return _bounded(redact(patch.decode(errors="surrogateescape")).encode(errors="surrogateescape"))


async def _names(root: Path, *words: str) -> list[bytes]:
    answer = await ask_git(root, *words, most=LARGEST_LIST, seconds=SECONDS)
    return [name for name in (answer or b"").split(b"\0")[:-1] if name]


async def _sections(root: Path, names: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Yield the patch of each file; of a removed one, without its former content."""
    if names:
        literal = [f":(literal){name.decode(errors='surrogateescape')}" for name in names]
        answer = await ask_git(root, *_DIFF, "--irreversible-delete", "--", *literal, most=2 * LARGEST, seconds=SECONDS)
        for part in _BEGINNING.split(answer or b""):
            yield part


def _as_new(root: Path, name: bytes) -> bytes:
    """Return the patch that creates a file; only its name if it is binary, large or not to be read."""
    path = root / name.decode(errors="surrogateescape")
    begin = b"diff --git a/%b b/%b\nnew file mode %o\n" % (name, name, 0o100644)
    try:
        is_plain = path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST
        data = path.read_bytes() if is_plain and _PLAIN_NAME.fullmatch(name) else b"\0"
    except OSError:
        return b""
    if b"\0" in data:
        return begin + b"Binary files /dev/null and b/%b differ\n" % name
    lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
    if not lines:
        return begin
    end = b"" if data.endswith(b"\n") else b"\n\\ No newline at end of file\n"
    head = b"--- /dev/null\n+++ b/%b\n@@ -0,0 +1,%d @@\n" % (name, len(lines))
    return begin + head + b"".join(b"+" + line for line in lines) + end


def _holds_key(part: bytes) -> bool:
    return holds_private_key(re.sub(rb"^[ +-]", b"", part, flags=re.MULTILINE))


def _bounded(patch: bytes) -> bytes:
    if len(patch) <= LARGEST:
        return patch
    return patch[: patch.rindex(b"\n", 0, LARGEST) + 1] + b"# remote-tool: the patch is longer; the rest was left out\n"
