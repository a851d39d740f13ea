"""List and send the files that jobs have written."""
