"""Follow the output of jobs."""
