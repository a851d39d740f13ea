"""This machine: atomic files, locks, and subprocesses."""

__all__ = ["files", "guard", "locks", "programs"]
