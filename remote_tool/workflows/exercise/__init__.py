"""Exercise the GPUs of servers and the network between them."""

__all__ = ["exercise"]
