"""Printing to the terminal and to pipes."""
