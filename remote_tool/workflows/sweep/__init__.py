"""Start a job for each combination of parameters, and show their results."""

__all__ = ["answer", "file", "plan", "request", "results", "sweep", "values"]
