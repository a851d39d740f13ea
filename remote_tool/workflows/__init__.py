"""The work of the commands, a room for each subject; pyproject.toml says which room may import which."""

__all__ = [
    "artifacts",
    "clean",
    "context",
    "demo",
    "events",
    "exercise",
    "fan_out",
    "forward",
    "jobs",
    "launch",
    "prepare",
    "rerun",
    "selection",
    "servers",
    "start",
    "sweep",
    "sync",
    "terminal",
]
