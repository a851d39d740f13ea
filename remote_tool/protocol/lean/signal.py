"""``signal`` without its enumerations, whose import would take a tenth of what a short answer does."""

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
    """Return the number of a signal of this machine by its name, as ``SIGTERM``; None when it has none of this name."""
    is_signal = name.startswith("SIG") and not name.startswith("SIG_")
    return getattr(signal, name, None) if is_signal else None


def name_of(number: int) -> str:
    """Return what a signal is called; ``SIGRTMIN+3`` when it has no name of its own."""
    # Of SIGABRT and SIGIOT, and of other pairs, the usual name is the first.
    names = sorted(name for name in dir(signal) if number_of(name) == number)
    return names[0] if names else f"SIGRTMIN+{number - signal.SIGRTMIN}"
