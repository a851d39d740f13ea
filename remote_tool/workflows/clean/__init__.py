"""Remove unused files, here and on servers."""

__all__ = ["clean", "disk_space", "request"]
