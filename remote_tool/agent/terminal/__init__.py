"""Terminals of jobs and of shells: the device, the thread that serves it, and those who attach to it."""

__all__ = ["device", "inside", "recording", "shell", "terminal"]
