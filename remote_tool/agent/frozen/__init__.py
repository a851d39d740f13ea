"""Copies of the project, which jobs run from."""
