"""What is printed, and where."""
