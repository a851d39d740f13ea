"""Split work over all slots of all servers."""

__all__ = ["answer", "fan_out", "observer", "resume", "work", "work_queue"]
