"""A way to hosts of the internet for servers that have none, through this machine."""

__all__ = ["way_out"]
