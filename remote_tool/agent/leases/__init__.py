"""Leases of GPUs, and the queue of the jobs that wait for some: files below /var/tmp, without a daemon or a lock."""

__all__ = ["claim", "fifo", "folders", "listing", "queued_file", "report", "slots", "standing", "waiter"]
