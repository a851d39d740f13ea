"""Start jobs, after sending files."""
