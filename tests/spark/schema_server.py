"""A small schema registry with Confluent's HTTP interface, in a thread."""

from __future__ import annotations

import base64
import json
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any


class SchemaServer:
    """``answers``: by path without query; ``status``: instead of an answer; ``asked``: requests by path."""

    def __init__(self, answers: dict[str, Any], login: str = "") -> None:
        self.answers = answers
        self.login = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        self.status = 200
        self.body: bytes | None = None
        self.asked: Counter[str] = Counter()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                assert query == "format=serialized"
                served.asked[path] += 1
                status, told = served.status, served.answers.get(path)
                if status == 200 and served.login and self.headers["authorization"] != served.login:
                    status = 401
                if status == 200 and told is None:
                    status = 404
                body = served.body or json.dumps(told if status == 200 else {"error_code": status}).encode()
                self.send_response(status)
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> SchemaServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
