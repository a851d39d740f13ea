"""Trusted host keys, and where they are recorded."""

__all__ = ["check", "entries", "known_hosts", "record", "rules"]
