"""The environments of servers: facts about a server, plans as steps, packages, and checks."""

__all__ = [
    "cause",
    "checks",
    "choice",
    "facts",
    "image",
    "installers",
    "package_files",
    "packages",
    "scm_version",
    "step",
]
