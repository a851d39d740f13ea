"""Environment variables that remote-tool sets for a job's processes, and for its own programs."""

from __future__ import annotations

JOB_MARKER = "REMOTE_TOOL_JOB_ID"
SUPERVISOR_MARKER = "REMOTE_TOOL_SUPERVISOR"
PROJECT_MARKER = "REMOTE_TOOL_PROJECT"
# The pid of the process that may trace the job's processes.
TRACER_VARIABLE = "REMOTE_TOOL_TRACER"
# Of a job with retries: 1 for its first attempt.
ATTEMPT_VARIABLE = "REMOTE_TOOL_ATTEMPT"
SERVER_VARIABLE = "REMOTE_TOOL_SERVER"
# In a script for behind a launch command: the line is replaced when the job's GPUs are known.
GPUS_LINE = b"# GPUs "
# The path of a data set; the client does not know where the home folder is.
DATA_PREFIX = "REMOTE_TOOL_DATA_"
# Users cannot set these.
RESERVED_NAMES = {ATTEMPT_VARIABLE, JOB_MARKER, PROJECT_MARKER, SERVER_VARIABLE, SUPERVISOR_MARKER, TRACER_VARIABLE}
