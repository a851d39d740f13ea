"""Start, inspect, run and stop jobs."""
