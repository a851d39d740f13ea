"""Start one program on several servers."""

__all__ = ["launch", "node_facts", "restart"]
