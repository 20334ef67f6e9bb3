"""A file server on this machine with the habits of servers: some know ranges, some fall over."""

import random
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = random.Random(3).randbytes(700_001)


class Server(ThreadingHTTPServer):
    """Serve `content` under every path."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.ranges = True  # whether it sends the rest of a file that is asked for
        self.lengths = True  # whether it says how long an answer is
        self.die_after: list[int] = []  # bytes after which an answer ends early, one answer each
        self.statuses: list[int] = []  # to answer with instead, one answer each
        self.asked: list[str | None] = []  # the Range of each request
        self.headers: dict[str, str] = {}  # further ones of an answer
        self.url = f"http://127.0.0.1:{self.server_port}/file.bin"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.statuses:
            self.send_error(self.server.statuses.pop(0))
            return
        whole = self.server.content
        rest = asked and self.server.ranges
        start = int(re.match(r"bytes=(\d+)-", asked)[1]) if rest else 0
        if start >= len(whole) and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(whole)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        if self.server.lengths:
            self.send_header("Content-Length", str(len(whole) - start))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        end = start + self.server.die_after.pop(0) if self.server.die_after else len(whole)
        self.wfile.write(whole[start:end])

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(content: bytes):
    """Run a `Server` in a thread of its own."""
    with Server(content) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
