"""The listing of a project: what rsync selects, what find tells, and what a look at each file decides."""
