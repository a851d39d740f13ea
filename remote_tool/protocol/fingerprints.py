"""Compare the jobs that two sides know without sending all ids: constant size for any number of jobs.

Each id falls into a bucket, and each bucket has a sum over its ids. Equal sums mean equal ids; of differing buckets,
all ids are sent.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Set, Tuple


BUCKETS = 256
_DIGITS = 12
_LENGTH = BUCKETS * _DIGITS
_HEX_DIGITS = "0123456789abcdef"
# The random part of an id is its end. It is hashed again, so that sums differ whatever the ids are.
_RANDOM = 32
_MIX = 0x9E3779B97F4A7C15F39CC0605CEDC835


def fingerprints(ids: Iterable[str]) -> str:
    """Return the sums of all buckets as one string."""
    sums = [0] * BUCKETS
    for job_id in ids:
        bucket, value = _place(job_id)
        sums[bucket] ^= value
    return "".join("%012x" % each for each in sums)


def is_fingerprints(value: object) -> bool:
    """Return whether this has the form of a result of :func:`fingerprints`."""
    return isinstance(value, str) and len(value) == _LENGTH and not value.strip(_HEX_DIGITS)


def unlike(ours: str, theirs: str) -> Set[int]:
    """Return the buckets that differ between two sides."""
    return {
        bucket
        for bucket in range(BUCKETS)
        if ours[bucket * _DIGITS : (bucket + 1) * _DIGITS] != theirs[bucket * _DIGITS : (bucket + 1) * _DIGITS]
    }


def bucket_of(job_id: str) -> int:
    """Return an id's bucket."""
    return _place(job_id)[0]


def _place(job_id: str) -> Tuple[int, int]:
    mixed = (int(job_id[-_RANDOM:], 16) + _MIX) * _MIX
    return mixed >> 120 & 0xFF, mixed >> 72 & 0xFFFFFFFFFFFF
