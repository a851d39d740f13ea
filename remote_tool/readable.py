"""Sizes and counts as people read them."""

from __future__ import annotations

KIBIBYTE = 1024
MEBIBYTE = KIBIBYTE * KIBIBYTE


def readable_size(size: float, *, digits: int = 1) -> str:
    """Return a number of bytes in binary units: 1536 -> 1.5 KiB, 3758096384 -> 3.5 GiB."""
    if size < KIBIBYTE:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= KIBIBYTE
        if size < KIBIBYTE:
            return f"{size:.{digits}f} {unit}"
    return f"{size / KIBIBYTE:.{digits}f} TiB"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 file, 2 files, 3 processes."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
