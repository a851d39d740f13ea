"""The lines at the bottom of the screen while something runs."""
