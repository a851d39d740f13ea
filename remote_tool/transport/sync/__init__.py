"""Send files by rsync."""

__all__ = [
    "entries",
    "failures",
    "interrupted_sync",
    "last_sync",
    "local_rsync",
    "project",
    "push",
    "push_options",
    "relayed",
    "secrets",
    "server_script",
    "server_state",
]
