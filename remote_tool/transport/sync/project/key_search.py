"""Search many files with grep for the words that every private key contains."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import IO, TYPE_CHECKING

from remote_tool.system.programs import run_program
from remote_tool.transport.sync.local_rsync import environment, scratch_file
from remote_tool.transport.sync.project.found_files import END, name_of
from remote_tool.transport.sync.secrets import WORDS, may_be_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote_tool.transport.sync.blocks import Blocks

# Also in UTF-16, which has a NUL between letters.
_WORDS = "|".join([word.decode() for word in WORDS] + [".".join(word.decode()) for word in WORDS])
_SCRIPT = 'cd -- "$1" && exec xargs -0 grep -lZaE -e "$2" --'
_SEARCH_SECONDS = 600.0


async def find_suspects(root: Path, found: Blocks) -> list[bytes]:
    """Return the records of files that may hold a private key; of all files of that size if the search fails."""
    with tempfile.NamedTemporaryFile() as proof, scratch_file() as names:
        # Proves that this grep finds the words in UTF-16, and so between NULs.
        proof.write("PRIVATE KEY".encode("utf-16"))
        proof.flush()
        await asyncio.to_thread(_write_names, names, found)
        names.write(os.fsencode(proof.name) + b"\0")
        names.seek(0)
        try:
            script = ("sh", "-c", _SCRIPT, "sh", str(root), _WORDS)
            answer = await run_program(*script, seconds=_SEARCH_SECONDS, env=environment(), stdin=names)
        except (OSError, TimeoutError):
            return [*_candidates(found)]
        hits = set(answer.output.split(b"\0")) - {b""}
        if os.fsencode(proof.name) not in hits:
            return [*_candidates(found)]
    # Most projects have no other hit, and need not be searched for its record.
    return [record for record in _candidates(found) if name_of(record) in hits] if len(hits) > 1 else []


def _write_names(file: IO[bytes], found: Blocks) -> None:
    """Write the names of files that may hold a key, each ended by NUL."""
    file.writelines(name_of(record) + b"\0" for record in _candidates(found))


def _candidates(found: Blocks) -> Iterator[bytes]:
    """Yield the records of regular files that have the size of a key."""
    for block in found:
        for record in block.split(END)[:-1]:
            is_regular = record.partition(b"\0")[2].startswith(b"f")
            if is_regular and may_be_key(int(record.rpartition(b" ")[2])):
                yield record
