"""Facts about this machine."""

__all__ = ["addresses", "gpu_use", "gpus", "job_watch"]
