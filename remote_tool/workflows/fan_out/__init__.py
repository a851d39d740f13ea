"""Split work over all slots of all servers."""
