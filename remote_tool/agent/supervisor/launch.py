"""A supervisor's part in a launch of several nodes: it watches the others, and sees whether its ranks meet theirs."""

from __future__ import annotations

import errno

from remote_tool.agent.launch import rendezvous
from remote_tool.agent.launch.cause import FAILED, KILLED, LOST, Cause
from remote_tool.agent.supervisor.command import NOT_STARTED
from remote_tool.agent.supervisor.shell import describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from remote_tool.agent.launch.cause import Membership
    from remote_tool.agent.launch.heartbeat import Watch
    from remote_tool.agent.supervisor.outcome import Outcome
    from remote_tool.agent.supervisor.plan import Plan


class NodeOfLaunch:
    """This node, as the other nodes of its launch know it."""

    def __init__(self, plan: Plan, membership: Membership) -> None:
        """Get ready to be watched.

        Raises:
            OSError: The other nodes could not reach this one.
        """
        self._membership = membership
        self._watch = make_watch(membership, plan.folder)
        # What runs in a container cannot be looked into.
        self._rendezvous = rendezvous.RendezvousCheck() if plan.command_wrapper is None else None

    @property
    def verdict(self) -> Optional[Cause]:
        """Why the launch ends, once that is decided."""
        return self._watch.verdict

    @property
    def lost_node(self) -> Optional[int]:
        """Rank of the node whose loss ended the launch."""
        cause = self._watch.verdict
        return cause.rank if cause is not None and cause.kind == LOST else None

    @property
    def trained_alone(self) -> bool:
        """Whether the ranks of this node certainly met no others."""
        return self._rendezvous is not None and self._rendezvous.missed()

    def start_watch(self) -> None:
        """Watch from now on: in a thread, and the command was forked without one."""
        self._watch.start()
        self._watch.wait_to_join()

    def check_rendezvous(self) -> None:
        """See whether the ranks have met others, when it is time to."""
        if self._rendezvous is not None:
            self._rendezvous.check_if_due()

    def report_stop(self, request: Mapping[str, Any]) -> None:
        """Tell the others that the user ends this node."""
        self._report(KILLED, "was killed by the user", signal=request["signal"], grace=request["grace"])

    def find_cause(self, outcome: Outcome, *, is_explained: bool) -> Optional[str]:
        """Agree with the others on what failed first; return it when that was another node's failure."""
        self._report(FAILED, "; ".join(outcome.notes) if is_explained else describe_end(outcome.end))
        cause = self._watch.wait_for_verdict()
        if cause is None or cause.rank == self._membership.rank:
            return None
        return f"first {self.describe(cause)}"

    def describe(self, cause: Cause) -> str:
        """Say what happened to whom."""
        return f"{self._membership.name(cause.rank)} {cause.what}"

    def leave(self) -> None:
        """Go on for the other nodes for as long as they need it."""
        self._watch.leave()

    def _report(self, kind: str, what: str, **how: Any) -> None:  # noqa: ANN401 - fields of a cause
        self._watch.report(Cause(self._membership.rank, kind, what, **how))


def make_watch(membership: Membership, folder: int) -> Watch:
    """Return a node's part in the watching; OSError when the first node cannot listen."""
    if membership.rank == 0:
        from remote_tool.agent.launch.first_node import FirstNode  # noqa: PLC0415 - a node is either this or that

        return FirstNode(membership, folder)
    from remote_tool.agent.launch.other_node import OtherNode  # noqa: PLC0415 - see above

    return OtherNode(membership, folder)


def join_launch(plan: Plan, membership: Membership, outcome: Outcome) -> Optional[NodeOfLaunch]:
    """Return this node's part; None, with the reason noted, when the others could not reach it."""
    try:
        return NodeOfLaunch(plan, membership)
    except OSError as error:
        where = f"{membership.address} port {membership.port}"
        outcome.notes.append(f"{NOT_STARTED}: {where}: {error.strerror}")
        outcome.taken_port = membership.port if error.errno == errno.EADDRINUSE else None
        return None
