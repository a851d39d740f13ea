"""Set up, check and measure servers."""

__all__ = [
    "bandwidth",
    "check",
    "gpus",
    "init",
    "install_keys",
    "kept_logins",
    "samples",
    "ssh_config",
    "top",
]
