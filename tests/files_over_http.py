"""A web server on loopback for a folder, as careless as some are: it can flip a byte, cut, redirect."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from pathlib import Path

Change = Callable[[bytes], bytes]


@dataclass
class Site:
    """What is served.

    Attributes:
        folder: Its files.
        changes: By file name, what becomes of the bytes on their way.
        redirects: From path to path.
        cut: Names of files of which only half is sent, under the full length.
        requests: The paths that were asked for.
    """

    folder: Path
    changes: dict[str, Change] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    url: str = ""
    port: int = 0


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, site: Site, *args: object) -> None:
        self._site = site
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = unquote(self.path).lstrip("/")
        self._site.requests.append(path)
        if path in self._site.redirects:
            self.send_response(302)
            self.send_header("Location", f"{self._site.url}/{self._site.redirects[path]}")
            self.end_headers()
            return
        file = self._site.folder / path
        if not file.exists():
            self.send_error(404)
            return
        data = _page(file) if file.is_dir() else self._site.changes.get(file.name, bytes)(file.read_bytes())
        self.send_response(200)
        if file.is_dir():
            self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if file.name in self._site.cut else data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _page(folder: Path) -> bytes:
    """Return links to what a folder has, as package indexes do."""
    return "".join(f'<a href="{file.name}">{file.name}</a>' for file in sorted(folder.iterdir())).encode()


@contextmanager
def serve(folder: Path, certificate: Path | None = None) -> Iterator[Site]:
    """Serve a folder while the context lasts, over TLS with a certificate and its key."""
    site = Site(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, site))
    server.daemon_threads = True
    site.port = int(server.server_address[1])
    site.url = f"http://127.0.0.1:{site.port}"
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
