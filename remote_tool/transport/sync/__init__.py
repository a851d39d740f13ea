"""Send files by rsync."""
