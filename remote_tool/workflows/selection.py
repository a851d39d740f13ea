"""Select jobs and servers for a command, and its answer about jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.config.limits import names_of
from remote_tool.errors import JobError, RemoteToolError, SomeServersFailedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from remote_tool.config.model import Config
    from remote_tool.jobs.job import Job, JobState


# Each id begins with a date of this length.
_DATE = len("20261231")
SORT_FIELDS: dict[str, Callable[[Job], Any]] = {
    "key": lambda job: job.key,
    "server": lambda job: (job.server, job.key),
    "state": lambda job: (job.state.value, job.key),
    "started": lambda job: (job.started_at or job.created_at, job.key),
    "duration": lambda job: (job.duration(time.time()) or 0.0, job.key),
}


@dataclass(frozen=True)
class JobSelection:
    """A choice of jobs.

    Attributes:
        jobs: Keys, ids, or unique prefixes of ids, in any state.
        tags: A job must have all of them.
        servers: A job must be on one of them; empty: all.
        running: Select running jobs, and lost ones of which processes are left.
        stopped: Select jobs that have ended.
        hidden: Select hidden jobs too.
        states: A job must be in one of them, instead of ``running`` and ``stopped``; empty: any.
        last: Select only the newest N jobs, running or not; None: all.
    """

    jobs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    running: bool = True
    stopped: bool = False
    hidden: bool = False
    states: tuple[JobState, ...] = ()
    last: int | None = None

    def __post_init__(self) -> None:
        """Refuse a text in the place of several names."""
        names_of(self.servers)

    @property
    def is_explicit(self) -> bool:
        return bool(self.jobs or self.tags or self.servers)

    @property
    def may_have_ended(self) -> bool:
        """Whether the selection can include jobs that have ended."""
        if self.states:
            return any(state.is_finished for state in self.states)
        return self.stopped or self.last is not None or bool(self.jobs)


@dataclass(frozen=True)
class JobsAnswer:
    """The answer of a command about jobs.

    Attributes:
        jobs: The jobs, as they are now.
        errors: The error of each server that could not answer.
        bad: A message for each unreadable record.
        warnings: Servers and messages, such as that a sync changed files under a running job.
        answered: The servers that were asked, with or without jobs; those in ``errors`` have failed.
    """

    jobs: tuple[Job, ...]
    errors: Mapping[str, RemoteToolError] = field(default_factory=dict)
    bad: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    answered: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if every server answered, else the exit code of :class:`SomeServersFailedError`."""
        return self._failure.exit_code if self.errors else 0

    @property
    def program_exit_code(self) -> int:
        """The exit code of the first job that failed, else that of the servers."""
        for job in self.jobs:
            if job.state.is_finished and job.program_exit_code != 0:
                return job.program_exit_code
        return self.exit_code

    def raise_if_any_failed(self) -> JobsAnswer:
        """Raise the errors of servers, if there are any."""
        if not self.errors:
            return self
        failure = self._failure
        raise failure if failure.succeeded or len(self.errors) > 1 else next(iter(self.errors.values()))

    @property
    def _failure(self) -> SomeServersFailedError:
        asked = {*self.answered, *(job.server for job in self.jobs)}
        return SomeServersFailedError(self.errors, sorted(asked - self.errors.keys()))


class StillRunningError(JobError):
    """Jobs have not ended within the timeout.

    Attributes:
        answer: All jobs that were waited for, as they are now.
    """

    def __init__(self, answer: JobsAnswer, seconds: float) -> None:
        running = ", ".join(str(job.key) for job in answer.jobs if not job.state.is_finished)
        super().__init__(f"Still running after {seconds:g} s: job {running}", hint="remote-tool job-tail")
        self.answer = answer


def choose_logins(config: Config, names: Sequence[str]) -> tuple[str, ...]:
    """Return the named servers, or all that one logs in to: commands about connections have no others.

    Raises:
        UsageError: A name is unknown, or this machine, or every server is.
    """
    chosen = choose_servers(config, names)
    others = tuple(name for name in chosen if not config.servers[name].localhost)
    if not others or (names and others != chosen):
        here = next(name for name in chosen if config.servers[name].localhost)
        raise UsageError(f"{here} is this machine: nothing logs in to it", hint="Name another server with --server")
    return others


def choose_servers(config: Config, names: Sequence[str]) -> tuple[str, ...]:
    """Return the selected servers: the named ones, once each, or all.

    Raises:
        UsageError: There are no servers, or a name is not in the configuration.
    """
    names = names_of(names)
    if not names and not config.usual_servers:
        raise UsageError(f"No servers in {config.local.config_file}", hint="Add one under servers:, or give --hosts")
    unknown = [name for name in names if name not in config.servers]
    if unknown:
        known = ", ".join(config.usual_servers or config.servers)
        hint = f"--hosts {unknown[0]}, to use a host that is not configured" if "@" in unknown[0] else ""
        raise UsageError(f"Unknown server {unknown[0]!r}; the configuration has {known}", hint=hint)
    return tuple(dict.fromkeys(names)) or config.usual_servers


def choose_one_server(config: Config, names: Sequence[str], subject: str, command: str) -> str:
    """Return the only selected server; an error names the subject that needs one, and the command to type.

    Raises:
        UsageError: No server or several are selected, or a name is not in the configuration.
    """
    servers = choose_servers(config, names)
    if len(servers) != 1:
        hint = f"remote-tool {command} --server {servers[0]}"
        raise UsageError(
            f"{subject} needs one server, and {len(servers)} are selected: {', '.join(servers)}", hint=hint
        )
    return servers[0]


def choose_jobs(jobs: Iterable[Job], selection: JobSelection) -> list[Job]:
    """Return the selected jobs in the given order, but named ones in the order of their names.

    Raises:
        UsageError: A key or id is unknown, or an ambiguous prefix.
    """
    jobs = list(jobs)
    if selection.jobs:
        named = {job.id: job for word in selection.jobs for job in [find_job(jobs, word)]}
        return [job for job in named.values() if _matches(job, selection)]
    chosen = [job for job in jobs if _matches(job, selection) and _has_selected_state(job, selection)]
    if selection.last is not None:
        newest = {job.id for job in sorted(chosen, key=_by_age)[max(0, len(chosen) - selection.last) :]}
        chosen = [job for job in chosen if job.id in newest]
    return chosen


def sort_jobs(jobs: Iterable[Job], order: str) -> list[Job]:
    """Sort jobs by one of ``SORT_FIELDS``, in reverse if it begins with ``-``.

    Raises:
        UsageError: There is no such field.
    """
    field_name = order.removeprefix("-")
    if field_name not in SORT_FIELDS:
        raise UsageError(
            f"--sort {order!r} is not a field", hint=f"--sort {', '.join(SORT_FIELDS)}; -started: newest first"
        )
    return sorted(jobs, key=SORT_FIELDS[field_name], reverse=order.startswith("-"))


def find_job(jobs: Sequence[Job], word: str) -> Job:
    """Return the only job matching a key, an id or a prefix of an id.

    Raises:
        UsageError: None matches, or several do.
    """
    by_key = [job for job in jobs if str(job.key) == word]
    # Each id begins with the year: a key that no job has any longer must not select a job by its id.
    is_key = not word or (word.isdecimal() and len(word) < _DATE)
    found = by_key or [job for job in jobs if not is_key and job.id.startswith(word)]
    if not found:
        raise UsageError(f"No job {word!r}", hint="remote-tool job-list --stopped")
    if len(found) > 1:
        raise UsageError(f"{word!r} matches {len(found)} jobs: {describe_jobs(found)}")
    return found[0]


def choose_job_to_follow(jobs: Sequence[Job], selection: JobSelection) -> list[Job]:
    """Return the jobs to follow: the selected ones, or the most likely one.

    Raises:
        UsageError: There is no job, or several are running and none is a master.
    """
    if selection.jobs or selection.tags:
        chosen = choose_jobs(jobs, selection)
        running = [job for job in chosen if not job.state.is_finished]
        if not selection.jobs and not running and chosen:
            return [_newest(chosen)]
        if not chosen:
            raise UsageError("No job is selected", hint="remote-tool job-list --stopped")
        return chosen if selection.jobs else running
    candidates = [job for job in jobs if _matches(job, selection)]
    if not candidates:
        raise UsageError("There are no jobs", hint="remote-tool job-run --cmd '…'")
    return [_most_likely(candidates)]


def _most_likely(jobs: Sequence[Job]) -> Job:
    running = [job for job in jobs if not job.state.is_finished]
    masters = [job for job in running if job.is_master]
    if len(masters) == 1:
        return masters[0]
    if len(running) > 1:
        raise UsageError(f"{len(running)} jobs are running: {describe_jobs(running)}", hint="remote-tool job-tail KEY")
    return running[0] if running else _newest([job for job in jobs if job.is_master] or jobs)


def _newest(jobs: Sequence[Job]) -> Job:
    # Not by the key: a job of another checkout gets its key when it is found, even if it is old.
    return max(jobs, key=_by_age)


def _by_age(job: Job) -> tuple[float, int]:
    return job.created_at, job.key


def describe_jobs(jobs: Sequence[Job]) -> str:
    """Return the keys and servers of jobs, for a message."""
    return ", ".join(f"{job.key} ({job.server})" for job in jobs[:10]) + (" …" if len(jobs) > 10 else "")  # noqa: PLR2004


def _matches(job: Job, selection: JobSelection) -> bool:
    on_server = not selection.servers or job.server in selection.servers
    shown = selection.hidden or not job.is_hidden or bool(selection.jobs)
    return on_server and shown and set(selection.tags) <= set(job.tags)


def _has_selected_state(job: Job, selection: JobSelection) -> bool:
    if selection.states:
        return job.state in selection.states
    if selection.last is not None:
        return True
    # A lost job of which processes are left is both.
    return (selection.running and job.may_run) or (selection.stopped and job.state.is_finished)
