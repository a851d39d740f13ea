__all__ = [
    "cause",
    "checks",
    "choice",
    "facts",
    "installers",
    "kinds",
    "package_files",
    "packages",
    "scm_version",
    "step",
    "system_packages",
]
