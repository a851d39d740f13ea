"""Tables, with and without Rich."""

__all__ = ["bandwidth", "check", "gpus", "job_details", "job_diff", "jobs", "plain", "stacks", "sweep", "top"]
