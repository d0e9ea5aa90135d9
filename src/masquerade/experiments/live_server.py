"""Serves the page of a run that is under way, to browsers on this machine alone."""

import json
import math
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from masquerade.errors import MasqueradeError
from masquerade.experiments import watching
from masquerade.experiments.watching import Watched
from masquerade.report import live

HOST = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def server(path: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of a directory's page; port 0 is any that is free."""
    try:
        return ThreadingHTTPServer((HOST, port), partial(Handler, path))
    except OSError as error:
        text = f"port {port} of {HOST} cannot be taken ({error.strerror}); choose another --port"
        raise MasqueradeError("E502", text) from None


class Handler(BaseHTTPRequestHandler):
    """Answers two questions: for the page, and for what is new. It reads files and writes none."""

    def __init__(self, path: Path, *connection: object) -> None:
        self.directory = path
        super().__init__(*connection)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer a browser on this machine that asked for this machine."""
        # A page elsewhere may have had its own name lead here, to read what is answered.
        named = self.headers.get("Host", "").rpartition(":")[0]
        if named not in (HOST, "localhost"):
            self._answer(403, "text/plain", "Ask for 127.0.0.1.")
            return
        answers = {"/": self._page, "/progress.json": self._progress}
        if self.path not in answers:
            self._answer(404, "text/plain", "There is nothing here.")
            return
        try:
            kind, text = answers[self.path]()
        except (MasqueradeError, OSError) as error:
            self._answer(503, "text/plain", str(error))
            return
        self._answer(200, kind, text)

    def _page(self) -> tuple[str, str]:
        if watching.finished(self.directory):
            from masquerade.experiments.report_page import report_of

            return "text/html", report_of(self.directory)
        found = watching.watch(self.directory)
        return "text/html", live.page(str(self.directory), rows(found), watching.so_far(found))

    def _progress(self) -> tuple[str, str]:
        found = watching.watch(self.directory)
        charts = live.figures(watching.so_far(found))
        values = {
            "finished": watching.finished(self.directory),
            "seen": str([(each.name, each.seed, each.done) for each in found]),
            "progress": live.progress(rows(found)),
            "charts": {name: chart.on_page() for name, chart in charts.items()},
        }
        return "application/json", json.dumps(values, allow_nan=False)

    def _answer(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing: a terminal shows how far the run is."""


def rows(trainings: Sequence[Watched]) -> list[live.Training]:
    """Return what is shown of trainings."""
    return [
        live.Training(
            title=each.title,
            seed=each.seed,
            done=each.done,
            rounds=each.rounds,
            own=each.points[-1].own if each.points else math.nan,
            left=each.left,
        )
        for each in trainings
    ]
