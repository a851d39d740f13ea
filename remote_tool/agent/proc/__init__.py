"""Processes and subprocesses."""

__all__ = ["processes", "py_spy", "sockets", "stacks", "subprocess", "subreaper"]
