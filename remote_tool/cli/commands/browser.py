"""The commands that open a page in the browser: jupyter and tensorboard."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remote_tool.cli.groups import ChosenJobs, ConnectionFlags
from remote_tool.cli.options import Devices, Servers
from remote_tool.cli.output import streams
from remote_tool.cli.output.console import inform, inform_of_interruption, print_data
from remote_tool.config.devices import parse_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from remote_tool.workflows.forward.jupyter import Notebook

ANSWER_SECONDS = 60.0
LONGEST_INTERVAL = 3600
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port of this machine.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]


def jupyter(
    *,
    server: Servers = None,
    port: Port = None,
    no_browser: NoBrowser = False,
    devices: Devices = None,
    connection: ConnectionFlags,
) -> None:
    """Open Jupyter Lab of a server in the browser here, in the project's folder and environment there.

    It runs as a job, which is found again the next time. Nobody else on the server can connect to it. Ctrl-C ends only
    the connection. The port is 8888 or the next free one, unless --port names another.
    """
    from remote_tool.workflows.forward.jupyter import JupyterRequest  # noqa: PLC0415 - not for --help

    request = JupyterRequest(tuple(server or ()), port, parse_devices(devices))
    notebooks: list[Notebook] = []
    with _browser(is_enabled=not no_browser) as show:

        def on_open(notebook: Notebook) -> None:
            notebooks.append(notebook)
            job, opened = notebook.job, notebook.opened
            state = "is running" if notebook.is_new else "was running already"
            other = (
                f"; port {opened.requested_port} here is not free"
                if opened.requested_port not in {0, opened.listen.port}
                else ""
            )
            inform(f"job {job.key} on {job.server}: Jupyter Lab {state}{other}")
            print_data(notebook.url)
            show(notebook.url)

        try:
            with connection.console() as console:
                console.find_workspace().jupyter(request, on_open)
        except KeyboardInterrupt:
            if not notebooks:
                raise
            job = notebooks[0].job
            again = f"to open it again: remote-tool jupyter --server {job.server}"
            inform_of_interruption(f"; Jupyter Lab keeps running; {again}; to stop it: remote-tool job-kill {job.key}")
            raise typer.Exit(streams.INTERRUPTED) from None


def tensorboard(
    *,
    jobs: ChosenJobs,
    port: Port = None,
    interval: Annotated[
        float,
        typer.Option("--interval", min=1, max=LONGEST_INTERVAL, metavar="SECONDS", help="Fetch new data this often."),
    ] = 10,
    no_browser: NoBrowser = False,
    connection: ConnectionFlags,
) -> None:
    """Run TensorBoard here on the event files of jobs, which are fetched while the jobs run, until Ctrl-C.

    Without a selection, it shows all jobs, also those that start later. The port is 6006 or one of the next, unless
    --port names another.
    """
    from remote_tool.workflows.jobs.tensorboard import TensorboardRequest  # noqa: PLC0415 - not for --help

    request = TensorboardRequest(jobs.selection(stopped=True), port, interval)
    with _browser(is_enabled=not no_browser) as show:

        def on_open(url: str) -> None:
            print_data(url)
            show(url)

        with connection.console() as console:
            console.find_workspace().tensorboard(request, on_open)


@contextmanager
def _browser(*, is_enabled: bool) -> Iterator[Callable[[str], None]]:
    """Open addresses in the browser as soon as they answer, without waiting for it.

    An address may have a token, so it reaches the browser in a private file, not in its arguments.
    """
    if not is_enabled or not _has_screen():
        yield lambda _url: None
        return
    with tempfile.TemporaryDirectory(prefix="remote-tool-") as folder:
        page = Path(folder) / "open.html"

        def show(url: str) -> None:
            text = html.escape(url)
            page.write_text(f'<meta http-equiv="refresh" content="0;url={text}"><a href="{text}">remote-tool</a>\n')
            threading.Thread(target=_open, args=(url, page), daemon=True).start()

        yield show


def _has_screen() -> bool:
    """Return whether a browser opens a window: one in this terminal would take it over."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)


def _open(url: str, page: Path) -> None:
    import webbrowser  # noqa: PLC0415 - few commands need it

    if _answers(url):
        # Without a browser, the printed address is enough.
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(page.as_uri())


def _answers(url: str) -> bool:
    """Wait until an address answers, with any status."""
    import urllib.error  # noqa: PLC0415 - few commands need it
    import urllib.request  # noqa: PLC0415 - as above

    # A proxy would not find an address of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        try:
            opener.open(url.partition("?")[0], timeout=10).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.2)
        else:
            return True
    return False
