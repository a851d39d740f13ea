"""Set up, check and measure servers."""
