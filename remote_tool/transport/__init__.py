__all__ = ["authorized_keys", "daemon_threads", "host", "kept", "login", "pool", "ssh", "sync"]
