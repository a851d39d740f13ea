"""End jobs early, run them again, or act when a machine has none left; few jobs need any of it."""

__all__ = ["attempts", "early_end", "on_empty"]
