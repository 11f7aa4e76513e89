"""A web server for one page, the report of the watched runs; nobody but this machine can reach it."""

from __future__ import annotations

import html
import importlib
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fairmean.errors import UserError

HOST = "127.0.0.1"
_MISSING = "--web needs the module fairmean.report, which is not part of this installation; install fairmean anew"


def html_of(folders: list[Path]) -> str:
    """The report of these runs as one HTML page."""
    try:
        report: Any = importlib.import_module("fairmean.report")
    except ModuleNotFoundError as error:
        if error.name != "fairmean.report":
            raise
        raise UserError(_MISSING) from None
    return str(report.html(report.collect(report.gather(folders))))


class Page:
    """The page as text, made when it is asked for, and not again for ``every`` seconds."""

    def __init__(self, make: Callable[[], str], every: float) -> None:
        self._make, self._every = make, every
        self._made, self._text = -every, ""
        self._lock = threading.Lock()  # several browsers may ask at once

    def text(self) -> str:
        """The page; where it cannot be made yet, a page that says why."""
        with self._lock:
            if time.monotonic() - self._made >= self._every:
                try:
                    self._text = self._make()
                except UserError as error:
                    self._text = _note(str(error))
                self._made = time.monotonic()
            return self._text


def _note(message: str) -> str:
    head = '<meta charset="utf-8"><title>fairmean</title>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><p>{html.escape(message)}</p></body></html>'


def server(page: Page, at_work: Callable[[], bool], every: float, port: int = 0) -> ThreadingHTTPServer:
    """A server of this page on a free port; the browser asks again every few seconds as long as runs are at work."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, body: bool) -> None:
            own = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}  # type: ignore[attr-defined]
            if self.headers.get("Host") not in own:  # a name of somebody else's that leads here
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            if self.path.partition("?")[0] != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            again = at_work()  # before the page is made, so that the last page shows the end
            content = page.text().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            if again:
                self.send_header("Refresh", f"{max(every, 1):.0f}")
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing of requests."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--port {port}: cannot be used ({reason}); without --port a free one is taken") from None
