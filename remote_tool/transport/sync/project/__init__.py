"""The listing of a project: select files with rsync, list them with find, and judge each one."""

__all__ = ["contents", "look", "snapshot", "workspace"]
