"""This machine: atomic files, locks, and subprocesses."""
