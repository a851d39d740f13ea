"""The commands that start one program on several servers, and many jobs at once."""
