"""Pull artifacts of jobs."""

__all__ = ["answer", "listing", "pull"]
