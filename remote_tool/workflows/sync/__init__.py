"""Sync the project and data sets."""

__all__ = ["adoption", "data_sets", "first_sync", "from_job", "left_out", "options", "project", "relay", "sync"]
