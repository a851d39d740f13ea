"""What commands do, a room for each subject; a room imports only from those below it, as pyproject.toml lists them."""

__all__ = [
    "artifacts",
    "clean",
    "context",
    "demo",
    "events",
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
