"""Terminals on servers: a shell, and those of jobs."""
