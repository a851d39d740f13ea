"""The process that runs one job."""

__all__ = ["limits", "missing_folder", "on_end", "plan", "queue", "records", "shell", "supervise", "tree"]
