__all__ = ["command", "fan_out", "job_request", "launch_options", "plan", "request", "shared_outputs", "sweep"]
