"""SSH connections."""

__all__ = [
    "channel",
    "connection",
    "context",
    "endpoint",
    "host",
    "host_keys",
    "liveness",
    "log_in",
    "passwords",
    "script",
    "ssh_config",
    "user_keys",
]
