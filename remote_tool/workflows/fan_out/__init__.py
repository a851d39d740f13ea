"""Split work over all slots of all servers."""

__all__ = ["answer", "fan_out", "observer", "plan", "request", "slots", "work_queue"]
