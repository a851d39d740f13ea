"""What reaches this machine, and how fast."""
