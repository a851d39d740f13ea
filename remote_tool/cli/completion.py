"""Shell completion of servers, jobs, tags and folders, read from local files; silent if there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote_tool.cli.output.sanitize import one_line
from remote_tool.config.loading import load
from remote_tool.errors import RemoteToolError
from remote_tool.jobs.listed_hosts import recall_hosts
from remote_tool.jobs.registry import Registry
from remote_tool.paths import current_folder, find_root

if TYPE_CHECKING:
    from remote_tool.config.model import Config
    from remote_tool.jobs.job import Job

MOST_JOBS = 50
LONGEST = 50


def complete_server(incomplete: str) -> list[str]:
    """Offer the configured servers."""
    config = _config()
    return [name for name in config.servers if name.startswith(incomplete)] if config else []


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Offer the newest jobs by key, with their commands."""
    config = _config()
    jobs = Registry(config.local.jobs).load_newest(MOST_JOBS) if config else []
    found = [(str(job.key), one_line(f"{job.server}: {job.command}")[:LONGEST]) for job in jobs]
    return [each for each in found if each[0].startswith(incomplete)]


def complete_tag(incomplete: str) -> list[str]:
    """Offer the tags of all jobs, except those with characters that a shell or a terminal would interpret."""
    tags = {tag for job in _jobs() for tag in job.tags if tag.startswith(incomplete)}
    return sorted(tag for tag in tags if tag.isprintable() and " " not in tag)


def complete_folder(incomplete: str) -> list[str]:
    """Offer folders below the current one."""
    above, _, start = incomplete.rpartition("/")
    folders = sorted(each for each in (current_folder() / above).glob("*/") if each.name.startswith(start))
    return [f"{above}/{each.name}" if above else each.name for each in folders if start or each.name[0] != "."]


def _config() -> Config | None:
    try:
        config = load(find_root(current_folder()))
        return recall_hosts(config, Registry(config.local.jobs), _ignore_notice)
    except (RemoteToolError, OSError):
        return None


def _ignore_notice(_text: str) -> None:
    """A notice would disturb the command line that is being completed."""


def _jobs() -> list[Job]:
    config = _config()
    return Registry(config.local.jobs).load()[0] if config else []
