"""What ends a job early, runs it again, or follows when a machine has none left; few jobs need any of it."""

__all__ = ["attempts", "early_end", "on_empty"]
