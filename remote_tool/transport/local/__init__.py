"""This machine in the place of a server."""

__all__ = ["connection"]
