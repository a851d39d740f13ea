"""What the nodes of a launch tell each other."""
