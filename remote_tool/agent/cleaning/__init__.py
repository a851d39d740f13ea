"""Remove unused files from a server."""

__all__ = ["clean", "leftovers", "removed_jobs"]
