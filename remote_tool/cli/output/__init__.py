"""Printing to the terminal and to pipes."""

__all__ = ["console", "json_output", "log_lines", "questions", "sanitize", "streams"]
