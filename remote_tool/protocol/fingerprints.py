"""Comparing which jobs two sides know without telling all their ids: as many bytes for ten as for ten thousand.

Each id falls into a bucket, and a bucket has a sum over its ids. Where the sums are the same, so are the ids; of the
others, all ids of the bucket are told.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Set, Tuple

BUCKETS = 256
_DIGITS = 12
_LENGTH = BUCKETS * _DIGITS
_HEX_DIGITS = "0123456789abcdef"
# The random part of an id is its end. It is mixed once more: whatever the ids are, their sums are unlike.
_RANDOM = 32
_MIX = 0x9E3779B97F4A7C15F39CC0605CEDC835


def fingerprints(ids: Iterable[str]) -> str:
    """Return the sums of all buckets, as one text."""
    sums = [0] * BUCKETS
    for job_id in ids:
        bucket, value = _place(job_id)
        sums[bucket] ^= value
    return "".join("%012x" % each for each in sums)


def is_fingerprints(value: object) -> bool:
    """Whether this can be what :func:`fingerprints` returns."""
    return isinstance(value, str) and len(value) == _LENGTH and not value.strip(_HEX_DIGITS)


def unlike(ours: str, theirs: str) -> Set[int]:
    """Return the buckets in which two sides do not know the same."""
    return {
        bucket
        for bucket in range(BUCKETS)
        if ours[bucket * _DIGITS : (bucket + 1) * _DIGITS] != theirs[bucket * _DIGITS : (bucket + 1) * _DIGITS]
    }


def bucket_of(job_id: str) -> int:
    """Return the bucket of an id."""
    return _place(job_id)[0]


def _place(job_id: str) -> Tuple[int, int]:
    mixed = (int(job_id[-_RANDOM:], 16) + _MIX) * _MIX
    return mixed >> 120 & 0xFF, mixed >> 72 & 0xFFFFFFFFFFFF
