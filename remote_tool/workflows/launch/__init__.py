"""Start one program on several servers."""
