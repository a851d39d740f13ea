"""The status line at the bottom of the screen."""
