"""Trusted host keys, and where they are recorded."""
