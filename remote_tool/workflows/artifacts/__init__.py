"""Pull artifacts of jobs."""
