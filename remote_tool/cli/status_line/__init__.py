"""The status line at the bottom of the screen."""

__all__ = ["live_status"]
