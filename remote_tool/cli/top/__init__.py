"""The screen of ``top``."""

__all__ = ["run"]
