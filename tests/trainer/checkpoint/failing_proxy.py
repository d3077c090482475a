"""An HTTP proxy that lets a share of the requests fail: by 503, or by a cut connection."""

import collections
import http.client
import http.server
import random
import socketserver
import sys
import threading
import urllib.parse

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"
NOT_PASSED_ON = ("transfer-encoding", "content-length", "connection", "date", "server")


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def __init__(self, backend, share, seed):
        super().__init__(("127.0.0.1", 0), Handler)
        self.backend, self.share, self.chance = backend, share, random.Random(seed)
        self.failed = []  # methods of the requests that failed
        self.read = collections.Counter()  # bytes of the answers to GET, by path
        self.changed = None  # called after each request that may change something
        self.changes, self.counting = threading.Lock(), threading.Lock()

    def handle_error(self, request, client_address):
        """A client that was killed cuts its connections."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(length))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        del self.headers["Transfer-Encoding"]
        return b"".join(parts)

    def answer(self, status, headers, length, text):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def pass_on(self):
        body = self.body()
        luck = self.server.chance.random()
        if luck < self.server.share:
            self.server.failed.append(self.command)
            if luck < self.server.share / 2:
                self.close_connection = True
                return
            self.answer(503, [], str(len(SLOW_DOWN)), SLOW_DOWN)
            return
        if self.server.changed is None or self.command in ("GET", "HEAD"):
            self.forward(body)
            return
        with self.server.changes:
            self.forward(body)
            self.server.changed()

    def forward(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.backend)
        headers = {
            k: v for k, v in self.headers.items() if k.lower() not in ("expect", "content-length")
        }
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if self.command == "GET":
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            with self.server.counting:
                self.server.read[path] += len(text)
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in NOT_PASSED_ON]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(text))
        self.answer(answer.status, kept, length, text)
        connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def log_message(self, *_):
        pass


def failing_proxy(backend, share, seed):
    """(server, methods of the requests that failed so far)"""
    server = Server(backend, share, seed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.failed
