"""A cluster that Slurm manages: its login node is a server, and Slurm starts, lists and ends the jobs.

:mod:`~remote_tool.workflows.slurm.scheduler` answers what the agent of another server answers, in the same form.
"""

__all__ = ["allocation", "partitions", "scheduler"]
