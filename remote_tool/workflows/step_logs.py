"""The complete output of each step, in a file in ``.remote/logs/``, with passwords in URLs redacted."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, Self

from remote_tool.redaction import redact_lines

if TYPE_CHECKING:
    from pathlib import Path

    from remote_tool.paths import LocalPaths

TAIL_LINES = 20
# A longer line is passed on in pieces; only progress bars have such lines.
LONGEST_LINE = 64 * 1024
# The part of the output that is searched for missing tools.
LONGEST_TAIL = 64 * 1024

# Logs kept for each step on each server, and in total.
MOST_OF_STEP, MOST_LOGS = 10, 5000
_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9]{6}-.+\.log")
_MOMENT_LENGTH = len("20261121-053000-000000-")
_URL_PASSWORD = re.compile(rb"(://)[^\s/@:]*(?::[^\s/@]*)?@")


class StepLog:
    """The output of one step, in a log file; the last part is in memory, too.

    Attributes:
        path: The log file.
    """

    def __init__(self, paths: LocalPaths, server: str, step: str) -> None:
        paths.logs.mkdir(parents=True, exist_ok=True)
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        self.path = paths.logs / f"{moment}-{server}-{step}.log"
        self._file: BinaryIO = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        self._partial: dict[int, bytes] = {}
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def write(self, data: bytes, stream: int = 0) -> bytes:
        """Append output; return its complete lines, with passwords redacted.

        Args:
            data: The bytes.
            stream: The number of the stream: lines of different streams are not mixed.
        """
        text = self._partial.pop(stream, b"") + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if len(text) - end > LONGEST_LINE:
            end = len(text)
        self._partial[stream] = text[end:]
        return self._keep(text[:end])

    def end(self) -> bytes:
        """Write the last lines, which are incomplete, and return them."""
        return b"".join(self._keep(text) for text in self._take_partial())

    @property
    def tail(self) -> bytes:
        """The last part of the output."""
        return b"".join(self._tail)

    @property
    def last_lines(self) -> list[str]:
        """The last lines that are not empty."""
        lines = self.tail.replace(b"\r", b"\n").decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-TAIL_LINES:]

    def remove_if_empty(self) -> None:
        """Remove the file if it is empty: most syncs print nothing, and there are many."""
        self.end()
        if self._file.tell() == 0:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.end()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_partial(self) -> list[bytes]:
        partial, self._partial = list(self._partial.values()), {}
        return partial

    def _keep(self, text: bytes) -> bytes:
        if not text:
            return b""
        shown = hide_passwords(text)
        self._file.write(shown)
        self._file.flush()
        self._tail.append(shown)
        self._tail_size += len(shown)
        while self._tail_size - len(self._tail[0]) > LONGEST_TAIL:
            self._tail_size -= len(self._tail.popleft())
        return shown


def remove_old_logs(paths: LocalPaths) -> None:
    """Remove all logs but the newest of each server and step, and limit their total number."""
    with suppress(OSError):
        counts: Counter[str] = Counter()
        names = [name for name in os.listdir(paths.logs) if _NAME.fullmatch(name)]  # noqa: PTH208 - no stat each
        for number, name in enumerate(sorted(names, reverse=True)):
            of_step = name[_MOMENT_LENGTH:]
            counts[of_step] += 1
            if counts[of_step] > MOST_OF_STEP or number >= MOST_LOGS:
                with suppress(OSError):
                    (paths.logs / name).unlink()


def hide_passwords(text: bytes) -> bytes:
    """Redact name and password in URLs, and known secrets."""
    return redact_lines(_URL_PASSWORD.sub(rb"\1***@", text))


def shown_path(path: Path, paths: LocalPaths) -> str:
    """Return a log's path relative to the project folder."""
    return str(path.relative_to(paths.root)) if path.is_relative_to(paths.root) else str(path)
