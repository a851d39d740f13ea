"""Search many files with grep for the words that every private key contains."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import TYPE_CHECKING

from remote_tool.system.programs import Question, ask_program
from remote_tool.transport.sync.local_rsync import environment
from remote_tool.transport.sync.project.found_files import END
from remote_tool.transport.sync.secrets import may_be_key

if TYPE_CHECKING:
    from pathlib import Path

# Also in UTF-16, which has a NUL between letters.
_WORDS = "PRIVATE KEY|PuTTY-User-Key-File|P.R.I.V.A.T.E|P.u.T.T.Y"
_SCRIPT = 'cd -- "$1" && exec xargs -0 grep -lZaE -e "$2" --'
_SEARCH_SECONDS = 600.0


async def find_suspects(root: Path, found: bytes) -> list[bytes]:
    """Return the records of files that may hold a private key; of all files of that size if the search fails."""
    records = await asyncio.to_thread(_candidates, found)
    names = b"".join(name + b"\0" for name in records)
    with tempfile.NamedTemporaryFile() as proof:
        # Proves that this grep finds the words in UTF-16, and so between NULs.
        proof.write("PRIVATE KEY".encode("utf-16"))
        proof.flush()
        question = Question(_SEARCH_SECONDS, environment(), stdin=names + os.fsencode(proof.name) + b"\0")
        try:
            answer = await ask_program(question, "sh", "-c", _SCRIPT, "sh", str(root), _WORDS)
        except (OSError, TimeoutError):
            return [*records.values()]
        hits = set(answer.output.split(b"\0"))
        if os.fsencode(proof.name) not in hits:
            return [*records.values()]
    return [record for name, record in records.items() if name in hits]


def _candidates(found: bytes) -> dict[bytes, bytes]:
    """Return the records of regular files that have the size of a key, by name."""
    pairs = ((record.partition(b"\0"), record) for record in found.split(END)[:-1])
    return {
        parts[0]: record
        for parts, record in pairs
        if parts[2].startswith(b"f") and may_be_key(int(parts[2].rpartition(b" ")[2]))
    }
