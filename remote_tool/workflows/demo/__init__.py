"""The demo: temporary SSH servers on this machine, and a complete session with them."""

__all__ = ["journey"]
