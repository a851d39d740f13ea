"""Remove what is not needed any more on a server."""
