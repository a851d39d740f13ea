"""Tables, with and without Rich."""

__all__ = ["check_rich", "jobs", "plain", "stacks", "sweep", "top"]
