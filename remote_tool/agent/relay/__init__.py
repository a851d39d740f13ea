"""Send the project from one server to others."""
