"""Prepare servers."""

__all__ = ["prepare"]
