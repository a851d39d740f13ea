"""Ask a server for the list of a job's files; it is validated as it arrives."""

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

# A network file system is slow to list many files.
LISTING_SILENCE = 300.0
LARGEST_FILE = 2**50
LARGEST_TIME = 2**34 * 10**9
LARGEST_INODE = 2**64
LONGEST_REASON = 300


@dataclass
class ArtifactListing:
    """A server's list of a job's files.

    Attributes:
        files: The requested files.
        older: The number of matching files that the job did not write.
        is_cut: Whether the server has left out files, as there are too many.
        shared: The number of listed files that another job may have written too.
        example: One of the shared files.
        error: The reason why there is no list, or empty.
        is_final: Whether another try would get the same answer: there is no error, or a permanent one.
        is_over: Whether the list has arrived completely.
        missing_from: The id of the folder of jobs that does not have the job, or empty.
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
        """Add a piece of the list.

        Raises:
            ValueError: It is invalid.
        """
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
    context: Context, server: str, patterns_by_job: Mapping[str, tuple[ArtifactPattern, ...]]
) -> dict[str, ArtifactListing]:
    """List the files of each job that match its patterns.

    Raises:
        JobError: The server refuses, or its answer is invalid.
        ConnectionLostError: The connection was lost.
    """
    host = await context.pool.host(server)
    listings = {job_id: ArtifactListing() for job_id in patterns_by_job}
    request = {
        "jobs": [{"id": job_id, "patterns": as_record(patterns)} for job_id, patterns in patterns_by_job.items()]
    }
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
