"""Which host keys are trusted, and where that is written down."""
