"""SSH connections."""
