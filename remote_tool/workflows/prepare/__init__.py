"""Prepare servers."""
