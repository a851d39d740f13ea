"""Remove unused files from a server."""
