"""This machine: files that appear whole or not at all, locks, and programs that answer."""
