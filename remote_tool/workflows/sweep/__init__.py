"""Start a job for each combination of parameters, and show their results."""
