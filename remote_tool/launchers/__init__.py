__all__ = [
    "command",
    "fan_out",
    "job_request",
    "launch_options",
    "options",
    "plan",
    "request",
    "shared_outputs",
    "sweep",
]
