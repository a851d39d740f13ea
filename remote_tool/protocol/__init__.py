"""Shared by client and servers. Standard library and Python 3.8 only, as it is sent to servers."""

__all__ = [
    "artifact_patterns",
    "artifact_search",
    "errors",
    "fingerprints",
    "framing",
    "job_fields",
    "job_folder",
    "limits",
    "marks",
    "nvidia_smi",
    "rank_errors",
    "records",
    "relay_files",
    "removing",
    "setup_script",
    "sparse_files",
    "streams",
    "strict_json",
    "terminal",
    "tunnel",
]
