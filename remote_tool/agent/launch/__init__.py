"""Communication between the nodes of a launch."""

__all__ = ["cause", "first_node", "heartbeat", "other_node", "rendezvous"]
