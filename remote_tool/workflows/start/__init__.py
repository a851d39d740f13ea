"""Start jobs, after sending files."""

__all__ = ["copies", "free_gpus", "kept_code", "move", "put_back", "send", "start", "start_specs"]
