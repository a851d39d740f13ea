"""Set up, check and measure servers."""

__all__ = [
    "bandwidth",
    "check",
    "gpus",
    "init",
    "install_keys",
    "install_ssh_config",
    "kept_logins",
    "samples",
    "ssh_config",
    "top",
]
