"""Terminals on servers: of shells and of jobs."""

__all__ = ["attach", "session", "shell"]
