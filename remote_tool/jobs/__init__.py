__all__ = [
    "artifacts",
    "job",
    "listed_hosts",
    "logs",
    "metrics",
    "records",
    "registry",
    "registry_lock",
    "stacks",
    "status_values",
]
