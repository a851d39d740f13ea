__all__ = ["app"]
