"""Connections to servers, and syncs over them."""

__all__ = ["daemon_threads", "host", "kept", "local", "pipes", "pool", "ssh", "sync"]
