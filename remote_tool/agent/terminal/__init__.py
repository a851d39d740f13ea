"""Terminals of jobs and of shells: the device, the thread that serves it, and its clients."""

__all__ = ["device", "inside", "recording", "shell", "terminal"]
