"""Plan a multi-node mpiexec: one script per node, without contacting a server.

mpiexec of MPICH (Hydra) needs a proxy on each node, which starts the ranks there. With ``-launcher manual`` it only
prints the proxies' commands. We start them over our own connections, so that the servers need no SSH access to each
other.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from remote_tool.errors import JobError, UsageError
from remote_tool.launchers.command import MPI_LAUNCHERS, with_interpreter
from remote_tool.launchers.nodes import count_processes, launch_environment, refuse_one_machine
from remote_tool.launchers.plan import CommandLine, FirstNode, Launcher, LaunchPlan, NodePlan
from remote_tool.protocol.job_folder import PROXIES_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote_tool.launchers.plan import LaunchNames, NodeFacts, Rendezvous
    from remote_tool.launchers.request import LaunchRequest

MPIEXEC = "mpiexec.hydra"
PROXY = "hydra_pmi_proxy"
# The server's own limit is shorter.
PROXIES_SECONDS = 45.0
_FAILED_FILE = "mpi-failed"
_STATUS_FILE = "mpi-status"
_PROXY_ERRORS_FILE = "mpi-proxy-errors"
# Options that mpiexec may pass to a proxy; values are plain text.
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
# Files in the job's folder are named relative to this.
_TO_PROJECT = 'cd "$REMOTE_TOOL_PROJECT" || exit'

# Messages of MPICH for MPI_Abort and for its own errors.
_ABORT = r"Abort\(-?[0-9]{1,10}\) on node [0-9]+ .*"

# Runs in place of each rank: its arguments are the command, the folder of jobs, and the working folder. Hydra notices
# when a rank ends before MPI_Init, but lets the others wait for it; so the proxy is ended, and with it this node's
# job. The second before that lets the rank's output pass through the proxy. Errors go straight into the job's
# file: at MPI_Abort mpiexec exits at once, and pending output is lost. Hydra leaks the proxy's connection to
# mpiexec into its ranks; mpiexec waits for the last process that has it, so ranks and their children must not.
_RANK = """\
for fd in 3 4 5 6 7 8 9; do [ "$fd" = "$PMI_FD" ] || eval "exec $fd>&-"; done
cd "$REMOTE_TOOL_PROJECT" || exit
errors="$2/$REMOTE_TOOL_JOB_ID/job.err"
[ -w "$errors" ] && exec 2>>"$errors"
cd "./$3" || exit
"$(command -v bash || echo sh)" -c "$1"
status=$?
[ "$status" = 0 ] && exit
said="rank $PMI_RANK of $PMI_SIZE on $REMOTE_TOOL_SERVER ended with exit code $status"
echo "$status $said" >"$REMOTE_TOOL_PROJECT/$2/$REMOTE_TOOL_JOB_ID/mpi-failed"
sleep 1
kill -KILL "$PPID"
exit "$status"
"""


def plan_mpi(
    request: LaunchRequest, facts: Sequence[NodeFacts], rendezvous: Rendezvous, names: LaunchNames
) -> LaunchPlan:
    """Return each node's command; the proxies' options are known only once mpiexec runs.

    Raises:
        JobError: Hydra does not support the rendezvous address.
    """
    if ":" in rendezvous.address:
        raise JobError(
            f"mpiexec needs an IPv4 address for the rendezvous, found {rendezvous.address}",
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
    """Return the first node's script: mpiexec and this node's proxy.

    Args:
        request: The launch.
        processes: Per node.
        rendezvous: Where mpiexec listens.
        folder: The job's folder, relative to the project.
    """
    hosts = ",".join(f"node-{rank}:{count}" for rank, count in enumerate(processes))
    jobs = folder.rpartition("/")[0]
    mpiexec = shlex.join(
        [
            *(MPIEXEC, "-launcher", "manual", "-localhost", rendezvous.address, "-hosts", hosts),
            # Each rank has the environment of its own node's job.
            *("-genvnone", "-disable-hostname-propagation", "-wdir", "/"),
            *("/bin/sh", "-c", _RANK, "rank", with_interpreter(request.command), jobs, request.workdir or ""),
        ]
    )
    place = shlex.quote(folder)
    return f"""\
# mpiexec {_one_line(request.command)}
{_TO_PROJECT}
{{
  MPIEXEC_PORT_RANGE={rendezvous.port}:{rendezvous.port} {mpiexec} </dev/null
  echo $? >{place}/{_STATUS_FILE}
}} | {{
  read -r mark proxy && [ "$mark" = HYDRA_LAUNCH: ] || exit
  while read -r mark line && [ "$mark" = HYDRA_LAUNCH: ]; do echo "$line"; done >{place}/{PROXIES_FILE}.new
  mv {place}/{PROXIES_FILE}.new {place}/{PROXIES_FILE}
  set -f
  $proxy </dev/null 2>{place}/{_PROXY_ERRORS_FILE} &
  (trap '' TERM INT HUP; exec cat)
}}
status=$(cat {place}/{_STATUS_FILE})
{_end(place, patience=1)}"""


def proxy_script(options: Sequence[str], rank: int, command: str, folder: str) -> str:
    """Return another node's script: the proxy, with mpiexec's options."""
    words = shlex.join([PROXY, *(options or ["…"])])
    place = shlex.quote(folder)
    return f"""\
# mpiexec, node {rank}: {_one_line(command)}
{_TO_PROJECT}
{words} </dev/null 2>{place}/{_PROXY_ERRORS_FILE}
status=$?
{_end(place, patience=3)}"""


def plan_proxies(lines: object, request: LaunchRequest, plan: LaunchPlan, jobs_folder: str) -> dict[int, str]:
    """Return each other node's command by rank, from the output of the first node's mpiexec.

    Raises:
        JobError: As for :func:`read_proxies`.
    """
    proxies = read_proxies(lines, plan)
    return {
        node.node_rank: proxy_script(
            proxies[node.node_rank], node.node_rank, request.command, f"{jobs_folder}/{node.job_id}"
        )
        for node in plan.nodes[1:]
    }


def read_proxies(lines: object, plan: LaunchPlan) -> dict[int, list[str]]:
    """Parse the output of the first node's mpiexec; return the proxy's options by node rank.

    Raises:
        JobError: It is not the output of MPICH's mpiexec.
    """
    count = len(plan.nodes) - 1
    if not isinstance(lines, list) or len(lines) != count:
        raise _refused(plan, f"{count} proxies were expected")
    return {rank: _read_proxy(line, rank, plan) for rank, line in enumerate(lines, 1)}


def _read_proxy(line: object, rank: int, plan: LaunchPlan) -> list[str]:
    if not isinstance(line, str) or len(line) > _LONGEST_LINE:
        raise _refused(plan, "a proxy's command is not short text")
    program, *words = line.split() or [""]
    options = dict(zip(words[0::2], words[1::2], strict=False))
    if program.rpartition("/")[2] != PROXY or len(words) != 2 * len(options):
        raise _refused(plan, f"{line!r:.200} is not a command of {PROXY}")
    for name, value in options.items():
        if name not in _OPTIONS or not _VALUE.fullmatch(value):
            raise _refused(plan, f"{name} {value!r:.100} is not known")
    where = f"{plan.rendezvous.address}:{plan.rendezvous.port}"
    if options.get("--control-port") != where or options.get("--proxy-id") != str(rank):
        raise _refused(plan, f"{line!r:.200} is not for node {rank} at {where}")
    return words


def _refused(plan: LaunchPlan, why: str) -> JobError:
    server = plan.nodes[0].server
    return JobError(f"{server}: refused the commands of its mpiexec for the other servers: {why}", server=server)


def _with_own_address(environment: Mapping[str, str], address: str) -> dict[str, str]:
    # Older devices of MPICH send their host name, which other nodes may not resolve.
    own = {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME": address} if address else {}
    return {**own, **environment}


def _end(place: str, *, patience: int) -> str:
    """Return shell lines that end a node's job with the exit code and message of its failed rank.

    A node without a failed rank waits for the one with it, so that this one ends first. The first node
    waits less: only it has the status of mpiexec.
    """
    failed, errors = f"{place}/{_FAILED_FILE}", f"{place}/{_PROXY_ERRORS_FILE}"
    return f"""\
[ "${{status:-1}}" = 0 ] && [ ! -e {failed} ] && exit
said=$(tail -c 65536 {place}/job.err | grep -aoE '{_ABORT}' | head -n 1)
if [ "$said" ]; then
  code=${{said#*(}}
  code=${{code%%)*}}
  status=$((code & 255))
  [ "$status" != 0 ] || status=1
elif [ -e {failed} ]; then
  read -r status said <{failed}
else
  cat {errors} >&2
  sleep {patience}
  exit "${{status:-1}}"
fi
[ "$(tail -n 1 {place}/job.err)" = "$said" ] || echo "$said" >&2
exit "$status\""""


def _one_line(command: str) -> str:
    return " ".join(command.split())


def read_mpi_line(command: str) -> CommandLine:
    """Return the command of each rank.

    Raises:
        UsageError: It is a pasted line that starts the ranks itself.
    """
    program = "".join(command.split(maxsplit=1)[:1]).rpartition("/")[2]
    if program in MPI_LAUNCHERS:
        raise UsageError(
            f"--cmd starts {program}, which starts its own processes, as helper-mpi-launch does",
            hint="Give only the program of a rank, e.g. --cmd 'python solve.py' --ppn 2",
        )
    return CommandLine(command)


LAUNCHER = Launcher(
    plan_mpi,
    refuse_one_machine,
    read_command=read_mpi_line,
    first_node=FirstNode(
        operation="proxies",
        seconds=PROXIES_SECONDS,
        commands=plan_proxies,
        program=MPIEXEC,
        hint=f"it needs MPICH: remote-tool run --cmd '{MPIEXEC} --version'",
    ),
)
