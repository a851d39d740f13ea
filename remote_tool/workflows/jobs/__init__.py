"""Start, list, follow and stop jobs."""

__all__ = [
    "bare_run",
    "compare",
    "failures",
    "follow",
    "listing",
    "log_streams",
    "orphans",
    "pull",
    "run",
    "show",
    "stacks",
    "stop",
    "tensorboard",
]
