"""Plans a multi-node mpiexec: facts and wishes in, one script per node out. Nothing here talks to a server.

mpiexec of MPICH (Hydra) wants one program of its own on each node, the proxy, which starts the ranks there. With
``-launcher manual`` it only prints how each is to be started. We do that over our own connections, so that the servers
need no SSH to each other.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from remote_tool.errors import JobError
from remote_tool.launchers.fan_out import with_interpreter
from remote_tool.launchers.torch import (
    LaunchNames,
    LaunchPlan,
    LaunchRequest,
    NodeFacts,
    NodePlan,
    Rendezvous,
    count_processes,
    launch_environment,
)
from remote_tool.supervisor.proxies import PROXIES_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MPIEXEC = "mpiexec.hydra"
PROXY = "hydra_pmi_proxy"
_FAILED_FILE = "mpi-failed"
_STATUS_FILE = "mpi-status"
# What mpiexec may ask of a proxy; a value is plain text.
_OPTIONS = frozenset(
    [
        "--control-port",
        "--rmk",
        "--launcher",
        "--demux",
        "--iface",
        "--pgid",
        "--retries",
        "--usize",
        "--pmi-port",
        "--gpus-per-proc",
        "--proxy-id",
        "--topolib",
        "--auto-cleanup",
        "--debug",
    ]
)
_VALUE = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_LONGEST_LINE = 4000

# Runs in place of each rank: its arguments are the command and the name of the folder of jobs. Hydra hears of a rank
# that ends before MPI_Init, but lets the others wait for it; so the proxy is ended, and with it this node's job. The
# second before is for what the rank said, which goes by way of the proxy.
_RANK = """\
cd "$REMOTE_TOOL_PROJECT" || exit
"$(command -v bash || echo sh)" -c "$1"
status=$?
[ "$status" = 0 ] && exit
said="rank $PMI_RANK of $PMI_SIZE on $REMOTE_TOOL_SERVER ended with exit code $status"
echo "$status $said" >"$2/$REMOTE_TOOL_JOB_ID/mpi-failed"
sleep 1
kill -KILL "$PPID"
exit "$status"
"""


def plan_mpi(
    request: LaunchRequest, facts: Sequence[NodeFacts], rendezvous: Rendezvous, names: LaunchNames
) -> LaunchPlan:
    """Say what each node runs; what mpiexec asks of the proxies is known only when it runs.

    Raises:
        JobError: They meet at an address that Hydra does not understand.
    """
    if ":" in rendezvous.address:
        raise JobError(
            f"mpiexec needs an IPv4 address to meet at, found {rendezvous.address}",
            hint=f"Set servers.{facts[0].server}.address in configs.yaml",
        )
    processes = count_processes(request, facts)
    nodes = []
    offset = 0
    for rank, (node, job_id) in enumerate(zip(facts, names.job_ids, strict=True)):
        folder = f"{names.jobs_folder}/{job_id}"
        route = rendezvous.routes[node.server]
        environment = launch_environment(request, node, route, names.launch_id)
        words = first_script(request, list(processes.values()), rendezvous, folder)
        nodes.append(
            NodePlan(
                server=node.server,
                job_id=job_id,
                node_rank=rank,
                processes=processes[node.server],
                rank_offset=offset,
                command=proxy_script([], rank, request.command, folder) if rank else words,
                environment=_with_own_address(environment, route.local_address),
            )
        )
        offset += processes[node.server]
    return LaunchPlan(names.launch_id, rendezvous, tuple(nodes))


def first_script(request: LaunchRequest, processes: Sequence[int], rendezvous: Rendezvous, folder: str) -> str:
    """Return what the first node runs: mpiexec, and beside it the proxy of this node.

    Args:
        request: What to run.
        processes: Of each node.
        rendezvous: Where mpiexec listens.
        folder: Of the job, from the project's folder on.
    """
    hosts = ",".join(f"node-{rank}:{count}" for rank, count in enumerate(processes))
    jobs = folder.rpartition("/")[0]
    mpiexec = shlex.join(
        [
            *(MPIEXEC, "-launcher", "manual", "-localhost", rendezvous.address, "-hosts", hosts),
            # Each rank has the environment of its own node's job.
            *("-genvnone", "-disable-hostname-propagation", "-wdir", "/"),
            *("/bin/sh", "-c", _RANK, "rank", with_interpreter(request.command), jobs),
        ]
    )
    place = shlex.quote(folder)
    return f"""\
# mpiexec {_one_line(request.command)}
{{
  MPIEXEC_PORT_RANGE={rendezvous.port}:{rendezvous.port} {mpiexec} </dev/null
  echo $? >{place}/{_STATUS_FILE}
}} | {{
  read -r mark proxy && [ "$mark" = HYDRA_LAUNCH: ] || exit
  while read -r mark line && [ "$mark" = HYDRA_LAUNCH: ]; do echo "$line"; done >{place}/{PROXIES_FILE}.new
  mv {place}/{PROXIES_FILE}.new {place}/{PROXIES_FILE}
  set -f
  $proxy </dev/null &
  (trap '' TERM INT HUP; exec cat)
}}
status=$(cat {place}/{_STATUS_FILE})
# Of two nodes that fail together, the other one has the cause.
[ "$status" = 0 ] || [ -e {place}/{_FAILED_FILE} ] || sleep 1
{_end(place)}"""


def proxy_script(options: Sequence[str], rank: int, command: str, folder: str) -> str:
    """Return what another node runs: the proxy, with what mpiexec asks of it."""
    words = shlex.join([PROXY, *(options or ["…"])])
    return f"""\
# mpiexec, node {rank}: {_one_line(command)}
{words} </dev/null
status=$?
{_end(shlex.quote(folder))}"""


def read_proxies(lines: object, plan: LaunchPlan) -> dict[int, list[str]]:
    """Check what the first node's mpiexec asks of the others; return the options of the proxy of each node rank.

    Raises:
        JobError: It is not what mpiexec of MPICH asks for.
    """
    count = len(plan.nodes) - 1
    if not isinstance(lines, list) or len(lines) != count:
        raise _refused(plan, f"{count} proxies were expected")
    return {rank: _read_proxy(line, rank, plan) for rank, line in enumerate(lines, 1)}


def _read_proxy(line: object, rank: int, plan: LaunchPlan) -> list[str]:
    if not isinstance(line, str) or len(line) > _LONGEST_LINE:
        raise _refused(plan, "a proxy's command is no short text")
    program, *words = line.split() or [""]
    options = dict(zip(words[0::2], words[1::2], strict=False))
    if program.rpartition("/")[2] != PROXY or len(words) != 2 * len(options):
        raise _refused(plan, f"{line!r:.200} is no command of {PROXY}")
    for name, value in options.items():
        if name not in _OPTIONS or not _VALUE.fullmatch(value):
            raise _refused(plan, f"{name} {value!r:.100} is not known")
    where = f"{plan.rendezvous.address}:{plan.rendezvous.port}"
    if options.get("--control-port") != where or options.get("--proxy-id") != str(rank):
        raise _refused(plan, f"{line!r:.200} is not for node {rank} at {where}")
    return words


def _refused(plan: LaunchPlan, why: str) -> JobError:
    server = plan.nodes[0].server
    return JobError(f"{server}: what its mpiexec wants started on the others is refused: {why}", server=server)


def _with_own_address(environment: Mapping[str, str], address: str) -> dict[str, str]:
    # Older devices of MPICH tell the others their host name, which these may not know.
    own = {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME": address} if address else {}
    return {**own, **environment}


def _end(place: str) -> str:
    failed = f"{place}/{_FAILED_FILE}"
    return f"""\
[ -e {failed} ] || exit "${{status:-1}}"
read -r status said <{failed}
echo "$said" >&2
exit "$status\""""


def _one_line(command: str) -> str:
    return " ".join(command.split())
