"""Copies of the project, which jobs run from."""

__all__ = ["copies", "guests", "home", "moving", "way"]
