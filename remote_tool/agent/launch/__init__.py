"""Communication between the nodes of a launch."""
