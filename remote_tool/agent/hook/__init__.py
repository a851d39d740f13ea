"""The folder that every job has on its PYTHONPATH."""
