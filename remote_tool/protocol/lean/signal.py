"""``signal`` without its enumerations, whose import would take a tenth of a short answer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal  # noqa: PLC0414 - it is what others import from here
    from typing import Optional
else:
    try:
        import _signal as signal
    except ImportError:
        import signal


def number_of(name: str) -> Optional[int]:
    """Return the number of a signal by its name, like ``SIGTERM``; None if this machine has no such signal."""
    is_signal = name.startswith("SIG") and not name.startswith("SIG_")
    return getattr(signal, name, None) if is_signal else None


def name_of(number: int) -> str:
    """Return a signal's name; ``SIGRTMIN+3`` if it has none of its own."""
    # For aliases such as SIGABRT and SIGIOT, the usual name comes first.
    names = sorted(name for name in dir(signal) if number_of(name) == number)
    return names[0] if names else f"SIGRTMIN+{number - signal.SIGRTMIN}"
