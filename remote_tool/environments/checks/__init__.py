"""The checks of ``remote-tool check``: of each server, and between servers."""

__all__ = ["agreement", "checks", "exercise", "machine"]
