"""Start, list, follow and stop jobs."""
