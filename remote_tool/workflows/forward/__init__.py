"""Carry connections between ports here and ports of servers."""

__all__ = ["forward", "jupyter", "session"]
