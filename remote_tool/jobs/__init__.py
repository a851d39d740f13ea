__all__ = [
    "artifacts",
    "job",
    "listed_hosts",
    "logs",
    "metrics",
    "records",
    "registry",
    "stacks",
    "status_values",
]
