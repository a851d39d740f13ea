"""Remove unused files, here and on servers."""
