"""The list of a job's files that a server has, checked as it comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote_tool.errors import JobError
from remote_tool.jobs.artifacts import RemoteFile, Stamp
from remote_tool.jobs.records import read_folder_id
from remote_tool.protocol.artifact_patterns import as_record
from remote_tool.protocol.limits import MOST_ARTIFACTS
from remote_tool.workflows import agent_client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote_tool.protocol.artifact_patterns import ArtifactPattern
    from remote_tool.workflows.context import Context

# A file system over the network takes its time to tell of many files.
LISTING_SILENCE = 300.0
LARGEST_FILE = 2**50
LARGEST_TIME = 2**34 * 10**9
LARGEST_INODE = 2**64
LONGEST_REASON = 300


@dataclass
class Listing:
    """What a server tells of a job's files.

    Attributes:
        files: Those that are wanted.
        older: How many match that the job did not write.
        is_cut: Whether there are more than are told.
        shared: How many of them another job can have written as well.
        example: One of those.
        error: Why there is nothing; empty without a reason.
        is_final: Whether there will never be more: no error, or one that stays.
        is_over: Whether all of it was told.
        missing_from: The id of the folder of jobs that does not have the job; empty without one.
    """

    files: list[RemoteFile] = field(default_factory=list)
    older: int = 0
    is_cut: bool = False
    shared: int = 0
    example: str = ""
    error: str = ""
    is_final: bool = True
    is_over: bool = False
    missing_from: str = ""

    def take(self, header: Mapping[str, Any]) -> None:
        """Take a piece of it; ValueError for what cannot be."""
        if self.is_over:
            raise ValueError("it continues after its end")
        if "files" in header:
            self.files += [_read_file(each) for each in _list(header["files"])]
            if len(self.files) > MOST_ARTIFACTS:
                raise ValueError(f"more than {MOST_ARTIFACTS} files")
            return
        self.is_over = True
        self.error = str(header.get("error") or "")[:LONGEST_REASON]
        self.is_final = not self.error or header.get("gone") is True
        self.missing_from = read_folder_id(header.get("folder_id"))
        self.is_cut = header.get("cut") is True
        self.older = read_number(header.get("older", 0), LARGEST_FILE)
        self.shared = read_number(header.get("shared", 0), LARGEST_FILE)
        self.example = str(header.get("example") or "")[:LONGEST_REASON]


async def list_files(
    context: Context, server: str, wanted: Mapping[str, tuple[ArtifactPattern, ...]]
) -> dict[str, Listing]:
    """Ask which files there are, by job.

    Raises:
        JobError: The server cannot tell, or says what cannot be.
        ConnectionLostError: The link went.
    """
    host = await context.pool.host(server)
    listings = {job_id: Listing() for job_id in wanted}
    request = {"jobs": [{"id": job_id, "patterns": as_record(patterns)} for job_id, patterns in wanted.items()]}
    async with agent_client.converse(host, context.config, "artifacts", request, silence=LISTING_SILENCE) as frames:
        async for frame in frames:
            try:
                listings[str(frame.header.get("job"))].take(frame.header)
            except (KeyError, TypeError, ValueError) as error:
                raise JobError(f"{server}: cannot read its list of artifacts ({error})", server=server) from error
    if not all(listing.is_over for listing in listings.values()):
        raise JobError(f"{server}: did not send its whole list of artifacts", server=server)
    return listings


def _read_file(value: object) -> RemoteFile:
    path, size, modified, inode, gives_way = _list(value)
    if not isinstance(path, str) or not isinstance(gives_way, bool):
        raise TypeError("a path is not text")
    return RemoteFile(path, read_stamp([size, modified, inode]), gives_way)


def read_stamp(value: object) -> Stamp:
    size, modified, inode = _list(value)
    return Stamp(
        read_number(size, LARGEST_FILE), read_number(modified, LARGEST_TIME), read_number(inode, LARGEST_INODE)
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def read_number(value: object, largest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise ValueError("a number is out of range")
    return value
