"""Sync the project and data sets."""
