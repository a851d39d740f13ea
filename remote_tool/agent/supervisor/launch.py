"""A supervisor's part in a launch of several nodes: heartbeat and rendezvous check."""

from __future__ import annotations

import errno

from remote_tool.agent.launch import rendezvous
from remote_tool.agent.launch.cause import FAILED, KILLED, LOST, Cause
from remote_tool.agent.supervisor.command import NOT_STARTED
from remote_tool.agent.supervisor.shell import describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Optional

    from remote_tool.agent.launch.cause import Membership
    from remote_tool.agent.launch.heartbeat import Watch
    from remote_tool.agent.supervisor.outcome import JobOutcome
    from remote_tool.agent.supervisor.plan import Plan


class NodeOfLaunch:
    """This node of a launch."""

    def __init__(self, plan: Plan, membership: Membership) -> None:
        """Start listening, if first.

        Raises:
            OSError: The other nodes could not reach this one.
        """
        self._membership = membership
        self._watch = make_watch(membership, plan.folder)
        # Processes in a container cannot be inspected; those of a cluster may well train alone.
        is_visible = plan.request.command_wrapper is None and not membership.goes_on_without_workers
        self._rendezvous = rendezvous.RendezvousCheck() if is_visible else None

    @property
    def verdict(self) -> Optional[Cause]:
        """Return why the launch ends, once decided."""
        return self._watch.verdict

    @property
    def lost_node(self) -> Optional[int]:
        """Return the rank of the lost node that ended the launch."""
        cause = self._watch.verdict
        return cause.rank if cause is not None and cause.kind == LOST else None

    @property
    def trained_alone(self) -> bool:
        """Return whether the ranks of this node certainly joined no others."""
        return self._rendezvous is not None and self._rendezvous.missed()

    def start_watch(self) -> None:
        """Start the heartbeat thread, after the command was forked."""
        self._watch.start()
        self._watch.wait_to_join()

    def check_rendezvous(self) -> None:
        """Check whether the ranks have joined others, when due."""
        if self._rendezvous is not None:
            self._rendezvous.check_if_due()

    def report_stop(self, request: Mapping[str, Any]) -> None:
        """Report to the other nodes that the user, or a limit, ends this one."""
        self._report(
            KILLED, request.get("why", "was killed by the user"), signal=request["signal"], grace=request["grace"]
        )

    def find_cause(self, outcome: JobOutcome, *, is_explained: bool) -> Optional[str]:
        """Agree with the other nodes on the first failure; return it if it was another node's."""
        self._report(FAILED, "; ".join(outcome.notes) if is_explained else describe_end(outcome.end))
        cause = self._watch.wait_for_verdict()
        if cause is None or cause.rank == self._membership.rank:
            return None
        return f"first {self.describe(cause)}"

    def is_own_failure(self, cause: Cause) -> bool:
        """Return whether it is the failure of a rank of this node."""
        return cause.rank == self._membership.rank and cause.kind == FAILED

    def describe(self, cause: Cause) -> str:
        """Describe the failure, naming the node."""
        return f"{self._membership.name(cause.rank)} {cause.what}"

    def leave(self) -> None:
        """Keep serving the other nodes for as long as they need it."""
        self._watch.leave()

    def _report(self, kind: str, what: str, **how: Any) -> None:  # noqa: ANN401 - fields of a cause
        self._watch.report(Cause(self._membership.rank, kind, what, **how))


def make_watch(membership: Membership, folder: int) -> Watch:
    """Return a node's heartbeat; OSError when the first node cannot listen."""
    return class_of_watch(membership)(membership, folder)


def class_of_watch(membership: Membership) -> Callable[[Membership, int], Watch]:
    """Load the heartbeat of a node; only launches need threads and sockets."""
    if membership.rank == 0:
        from remote_tool.agent.launch.first_node import FirstNodeWatch  # noqa: PLC0415 - see above

        return FirstNodeWatch
    from remote_tool.agent.launch.other_node import OtherNodeWatch  # noqa: PLC0415 - see above

    return OtherNodeWatch


def join_launch(plan: Plan, membership: Membership, outcome: JobOutcome) -> Optional[NodeOfLaunch]:
    """Return this node's part; None, with the reason recorded, when the others could not reach it."""
    try:
        return NodeOfLaunch(plan, membership)
    except OSError as error:
        where = f"{membership.address} port {membership.port}"
        outcome.notes.append(f"{NOT_STARTED}: {where}: {error.strerror}")
        outcome.taken_port = membership.port if error.errno == errno.EADDRINUSE else None
        return None
