"""Start a command behind a launch command such as ``docker exec``, or in a container of its own.

The job's shell is started there and reads its instructions from stdin, so the job's variables are in no argument and
no file, whatever the launch command keeps of its own environment.
"""

from __future__ import annotations

import os
import pwd
import shutil

from remote_tool.agent import activation
from remote_tool.agent.machine.gpus import count_nvidia
from remote_tool.agent.proc.subprocess import NO_PROGRAM, is_missing, open_script
from remote_tool.protocol import job_folder
from remote_tool.protocol.errors import RequestError
from remote_tool.protocol.limits import LONGEST_GPU
from remote_tool.protocol.marks import GPUS_LINE, JOB_MARKER, PROJECT_MARKER, SERVER_VARIABLE
from remote_tool.protocol.named_tuple import NamedTuple
from remote_tool.protocol.records import is_variable_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Tuple

    from remote_tool.agent.activation import Activation, Origin
    from remote_tool.agent.requests import Folders

NOT_INSIDE = 126
# Begins the last line but one of the script of a job.
ECHO_BEGUN = "echo begun >"
_SHELL = ("/bin/sh", "-s")
_PROJECT = "{project}"
_HOME = "home"
_NO_NICE = "'remote-tool: --nice needs the program nice inside, and it is not installed there'"
PODMAN = "podman"
_DOCKER_SOCKET = "/var/run/docker.sock"
# A pipe of an unprivileged user may hold this much.
_LARGEST_SCRIPT = 1024 * 1024
# The login's GPU variables apply inside too.
_PASSED_ON = ("CUDA_VISIBLE_DEVICES",)


class CommandWrapper(NamedTuple):
    """The launch command or container of a command, and the way to reach its processes.

    Attributes:
        words: Start a shell that reads its script from stdin.
        ask: Start another shell beside it.
        end: Remove the container and everything in it; empty if it is not the job's own.
        home: ``$HOME`` in a container of the job's own; empty elsewhere.
        activates: Whether the prepared environment is activated inside.
    """

    words: List[str]
    ask: List[str]
    end: List[str]
    home: str
    activates: bool


def read_wrapper(value: Any, name: str, folders: Folders) -> Optional[CommandWrapper]:  # noqa: ANN401 - from a request, checked here
    """Return the launch command of a request; None if it has none.

    Args:
        value: ``{"launch" or "container": words, "activate": bool}``.
        name: Name for the container.
        folders: The project's folders.

    Raises:
        RequestError: It is malformed, or the server has no engine for containers.
    """
    if value is None:
        return None
    kind = "container" if isinstance(value, dict) and "container" in value else "launch"
    words = value.get(kind) if isinstance(value, dict) else None
    if (
        not isinstance(words, list)
        or not words
        or not all(isinstance(word, str) and "\0" not in word for word in words)
    ):
        raise RequestError(f"The request's launch command cannot be {value!r:.60}")
    words = [word.replace(_PROJECT, folders.project) for word in words]
    activates = value.get("activate") is True
    if kind == "launch":
        return CommandWrapper([*words, *_SHELL], [*words, *_SHELL], [], "", activates)
    engine = _find_engine()
    kind = os.path.basename(engine)
    run = [engine, "run", *_options(kind, name, folders.project), *words[:-1]]
    return CommandWrapper(
        words=[*run, "--entrypoint", _SHELL[0], words[-1], *_SHELL[1:]],
        ask=[engine, "exec", "-i", name, *_SHELL],
        # podman would ask its first process to end, and wait; docker does not.
        end=[engine, "rm", "-f", *(["-t", "0"] if kind == PODMAN else []), name],
        home=os.path.join(folders.scripts, _HOME),
        activates=activates,
    )


def _find_engine() -> str:
    """Choose podman, which needs no daemon; for root docker, if its daemon is running."""
    is_served = "DOCKER_HOST" in os.environ or os.path.exists(_DOCKER_SOCKET)
    names = ("docker", "podman") if os.geteuid() == 0 and is_served else ("podman", "docker")
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise RequestError(
        "This server has neither podman nor docker to run a container", hint="Install podman on the server"
    )


def _options(engine: str, name: str, project: str) -> List[str]:
    is_podman = engine == PODMAN
    options = ["--rm", "--interactive", "--name", name, "--network", "host", "--ipc", "host", "--log-driver", "none"]
    options += ["--user", f"{os.getuid()}:{os.getgid()}", "--security-opt", "label=disable"]
    options += ["--mount", f"type=bind,source={project},target={project}"]
    if is_podman and os.geteuid() != 0:
        options += ["--userns", "keep-id"]
    if count_nvidia():
        options += ["--device", "nvidia.com/gpu=all"] if is_podman else ["--gpus", "all"]
    return options


def outside_environment(login: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """Return the launch command's own environment: the login's, without the job's mark.

    The mark is set inside, so it identifies the job's processes and not the launch command's own.
    """
    return activation.without_foreign_variables(login)


def job_script(
    command_wrapper: CommandWrapper,
    settings: Settings,
    path: str,
    nice: Optional[int] = None,
    *,
    on_terminal: bool = False,
    gpus: int = 0,
) -> bytes:
    """Return the script for the shell inside that runs the command in a job's folder, with an optional niceness.

    For a number of GPUs that are not known yet, it has a line to be replaced by one that is not longer.
    """
    file = _quoted(f"{path}/{job_folder.COMMAND}")
    # The first process of a container ignores termination signals by default, and must reap orphans.
    run = f"$shell {file}; exit" if command_wrapper.end else f"exec $shell {file}"
    begun = f"{ECHO_BEGUN}{_quoted(f'{path}/{job_folder.BEGUN}')} || exit {NOT_INSIDE}"
    return inner_script(settings, [*_gpu_lines(gpus), *_nice_lines(nice), begun, run], on_terminal=on_terminal)


def _gpu_lines(count: int) -> List[str]:
    return [GPUS_LINE.decode().ljust((count + 1) * LONGEST_GPU, "#")] if count else []


def _nice_lines(nice: Optional[int]) -> List[str]:
    if not nice:
        return []
    missing = f"command -v nice >/dev/null || {{ echo {_NO_NICE} >&2; exit {NOT_INSIDE}; }}"
    return [missing, f'shell="nice -n {nice} $shell"']


def run_script(
    command_wrapper: CommandWrapper, settings: Settings, command: str, nonce: str, marked: Tuple[int, ...]
) -> bytes:
    """Return the script for the shell inside that runs an attached command, after our mark on these outputs.

    A command with a client of its own for input and output begins without the mark.
    """
    mark = f"printf '\\000{nonce} run\\n'"
    run = f"$shell /dev/fd/9 9<<'{nonce}'\nexec 9<&-; {command}\n{nonce}"
    marks = [f"{mark} >&{output}" for output in marked]
    last = [run, "exit"] if command_wrapper.end else [f"exec {run}"]
    return inner_script(settings, [*marks, *last], on_terminal=not marked)


class Settings(NamedTuple):
    """Environment changes inside.

    Attributes:
        folder: The working folder.
        unset: Variables to remove first.
        variables: Variables to set, including the job's mark.
        first: Folders to prepend to list variables.
    """

    folder: str
    unset: List[str]
    variables: Dict[str, str]
    first: Dict[str, List[str]]

    def with_first(self, name: str, folder: str) -> Settings:
        """Return the same settings with one more folder before all others."""
        return self._replace(first={**self.first, name: [folder, *self.first.get(name, [])]})


def settings_for(
    command_wrapper: CommandWrapper, active: Activation, user: Mapping[str, str], origin: Origin
) -> Settings:
    """Return the settings inside: our variables and the user's; everything else is kept."""
    activation.check_user(user)
    variables = {JOB_MARKER: origin.job_id, PROJECT_MARKER: origin.project}
    variables.update({SERVER_VARIABLE: origin.server, "PYTHONUNBUFFERED": "1"})
    variables.update({name: os.environ[name] for name in _PASSED_ON if name in os.environ})
    first = {"PYTHONPATH": [origin.project, f"{origin.project}/src"]}
    unset = list(activation.STRAY_NAMES)
    if command_wrapper.home:
        login = pwd.getpwuid(os.getuid()).pw_name if _has_account() else str(os.getuid())
        variables.update(HOME=command_wrapper.home, USER=login, LOGNAME=login)
    if command_wrapper.activates:
        first["PATH"] = list(active.path)
        unset += [name for name in active.unset if is_variable_name(name)]
        variables.update(active.variables)
    variables.update(user)
    return Settings(origin.folder, unset, variables, {name: first[name] for name in first if name not in user})


def _has_account() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def inner_script(settings: Settings, last: List[str], *, on_terminal: bool = False) -> bytes:
    """Return a script that runs completely or not at all; its commands cannot read the rest of it.

    On a terminal the script does not come from stdin, which the commands keep.
    """
    folder = _quoted(settings.folder)
    lost = _quoted(f"remote-tool: {settings.folder} does not exist inside: mount it at the same path")
    strays = " ".join(f"-e 's/^\\({begin}[A-Za-z0-9_]*\\)=.*/unset \\1/p'" for begin in activation.STRAY_BEGINNINGS)
    lines = [
        "{",
        f"cd {folder} || {{ echo {lost} >&2; exit {NOT_INSIDE}; }}",
        f"unset {' '.join(settings.unset)}",
        f'eval "$(env | sed -n {strays})"',
        *(f"export {name}={_quoted(value)}" for name, value in settings.variables.items()),
        *(
            f'export {name}={_quoted(":".join(folders))}"${{{name}:+:${name}}}"'
            for name, folders in settings.first.items()
        ),
        "if command -v bash >/dev/null 2>&1; then shell=bash; else shell=sh; fi",
        *last,
        "}" if on_terminal else "} </dev/null",
    ]
    data = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
    if len(data) > _LARGEST_SCRIPT:
        raise RequestError(f"The job's variables exceed {_LARGEST_SCRIPT // 1024} KiB in total")
    return data


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def make_home(command_wrapper: CommandWrapper) -> None:
    """Create the folder that is ``$HOME`` in a container; the next container finds its contents."""
    if command_wrapper.home:
        os.makedirs(command_wrapper.home, 0o700, exist_ok=True)


def enter(words: List[str], script: Optional[bytes], environment: Mapping[bytes, bytes]) -> NoReturn:
    """Exec the launch command, with the script as its stdin; None on a terminal."""
    if script is not None:
        os.dup2(open_script(script), 0)
    try:
        os.execvpe(words[0], words, environment)  # noqa: S606 - it is what the user configured
    except OSError as error:
        if is_missing(words[0], environment, error):
            raise OSError(f"{words[0]}: {NO_PROGRAM}") from None
        raise
