"""Ask servers about jobs, and carry out what was left to be done when they answer again."""
