"""Terminals on servers: a shell, and those of jobs."""

__all__ = ["attach", "session", "shell"]
