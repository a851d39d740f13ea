"""Python imports this at its start, in every job: it can then show where each of its threads is.

This has to work in any Python, and must never break a program: whatever fails here, the program starts without it.
"""

import os
import sys

# Real-time signals end a process that does not expect them, and nearly no program uses this one.
SIGNAL = 58
# As the agent recognizes it in /proc/PID/fd; the file has no name, so that nothing is left behind.
NAME = "remote-tool-stacks-"
_LEAST_DESCRIPTOR = 200
# With 1 there, a process may be traced only by its parents, and by those that it has named.
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
_state = {}


def _open():
    for folder in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp", "/tmp"):
        path = os.path.join(folder, "%s%d-%s" % (NAME, os.getpid(), os.urandom(8).hex()))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(path, flags, 0o600)
        except OSError:
            continue
        os.unlink(path)
        return file
    return None


def _out_of_the_way(file):
    """Leave the small numbers to the program, which may expect them to be free."""
    import fcntl

    try:
        moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
    except OSError:
        return file
    os.close(file)
    return moved


def _register():
    """Write all stacks to a file of this process upon the signal."""
    import faulthandler

    file = _open()
    if file is None:
        return
    _state["file"] = _out_of_the_way(file)
    faulthandler.register(SIGNAL, _state["file"], all_threads=True, chain=False)


def _name_tracer():
    """Let the job's supervisor, which py-spy is started by, trace this process."""
    tracer = os.environ.get("REMOTE_TOOL_TRACER", "")
    if not tracer.isdigit() or not os.path.exists(SCOPE):
        return
    with open(SCOPE) as file:
        if file.read().strip() != "1":
            return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(tracer)), 0, 0, 0)


def _register_again():
    """In a forked child: its stacks go to a file of its own."""
    try:
        before = _state.pop("file", None)
        # The program may have closed it, and opened another file under its number.
        if before is not None and NAME in os.readlink("/proc/self/fd/%d" % before):
            _register()
            os.close(before)
        # A fork does not inherit it.
        _name_tracer()
    except Exception:
        pass


def _begin():
    if sys.version_info >= (3, 8) and sys.platform == "linux" and "REMOTE_TOOL_JOB_ID" in os.environ:
        _register()
        os.register_at_fork(after_in_child=_register_again)
        _name_tracer()


def _load_next():
    """Load the sitecustomize that Python would have loaded without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


try:
    _begin()
except Exception:
    pass
_load_next()
