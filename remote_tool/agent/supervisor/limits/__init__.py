"""What ends a job early, runs it again, or follows when a machine has none left; few jobs need any of it."""
