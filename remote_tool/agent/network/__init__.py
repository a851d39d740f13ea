"""Measure the network between servers."""
