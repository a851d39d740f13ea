"""Processes, and other programs."""
