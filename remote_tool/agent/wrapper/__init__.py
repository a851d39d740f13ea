"""Commands behind a launch command, like docker exec."""

__all__ = ["container", "wrapper"]
