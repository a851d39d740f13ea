"""Processes and subprocesses."""
