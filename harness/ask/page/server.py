"""Serve the page on this machine alone, until Ctrl-C."""

from __future__ import annotations

import logging
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.ask.words import ADVISE, allowed
from harness.commands.entry import DONE, print_all
from harness.commands.grammar import read
from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

HOST = "127.0.0.1"

USUAL_PORT = 8050
"""Of `serve=true`."""

NOT_SHOWN = ("mine", "price", "rate", "write", "show")
"""Words of the command that the page has no use for."""


def serve(argv: Sequence[str]) -> int:
    """Serve the page until Ctrl-C; return the exit status. Raises ConfigError."""
    words = read(argv, (*allowed(ADVISE), "serve"))
    typed, text = words.typed["serve"], words.values["serve"]
    if text != "true" and (not text.isdecimal() or int(text) > 65535):
        raise ConfigError(f"{typed}: expected true or a port, as serve={USUAL_PORT}; 0: any")
    port = USUAL_PORT if text == "true" else int(text)
    if unused := [words.typed[key] for key in NOT_SHOWN if key in words]:
        raise ConfigError(f"{unused[0]}: the page of serve= does not show it; leave one of the two out")
    if find_spec("dash") is None:
        raise ConfigError(
            f"{typed}: dash is not installed; the extra `serve` brings it: pip install "
            "'throughput-harness[serve]'"
        )
    asked = [f"{key}={text}" for key, text in words.values.items() if key not in ("serve", "out")]
    with listener(port, typed) as opened, tempfile.TemporaryDirectory() as folder:
        server = server_of(asked, Path(folder), opened)
        print_all([f"http://{HOST}:{server.port}/ shows the predicted step; Ctrl-C ends it."])
        try:
            with suppress(KeyboardInterrupt):
                server.serve_forever()
        finally:
            server.server_close()
    return DONE


def listener(port: int, typed: str) -> socket.socket:
    """Return a socket of this machine alone; raises ConfigError for a port that is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ConfigError(f"{typed}: port {port} of {HOST}: {reason}; give another") from error


def server_of(words: Sequence[str], folder: Path, opened: socket.socket) -> BaseWSGIServer:
    """Return the server of a page, ready to serve; raises ConfigError where its question is refused."""
    from werkzeug.serving import make_server

    from harness.ask.page.app import app_of

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line per request
    app = loopback_only(app_of(words, folder).server)
    return make_server(HOST, 0, app, threaded=True, fd=opened.fileno())


def loopback_only(app: Any) -> Any:
    """Return an application that answers nobody who reached it by another name than this machine's.

    A page elsewhere whose name was made to lead here (DNS rebinding) is refused.
    """

    def checked(environ: Mapping[str, Any], start_response: Any) -> Any:
        host = str(environ.get("HTTP_HOST", "")).rpartition(":")[0]
        if host not in (HOST, "localhost"):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"this page is for this machine alone\n"]
        return app(environ, start_response)

    return checked
