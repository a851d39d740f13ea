__all__ = ["command", "job_request", "launch_options", "nodes", "options", "plan", "request"]
