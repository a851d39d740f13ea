"""The listing of a project: select files with rsync, list them with find, and judge each one."""
