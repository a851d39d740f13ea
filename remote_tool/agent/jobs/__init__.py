"""Start, look at, run and stop jobs."""
