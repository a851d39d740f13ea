"""Facts about this machine."""

__all__ = ["addresses", "aside", "gpu_use", "gpus", "job_watch", "ranks"]
