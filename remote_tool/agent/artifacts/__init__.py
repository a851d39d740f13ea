"""List and send files that jobs wrote."""
