"""Connections by SSH."""
