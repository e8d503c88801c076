"""Serves port 80 with one process for each connection, as real servers with workers do.

`server.py DIRECTORY`: what it is asked is noted in DIRECTORY/asked, a line for each request.
"""

import hashlib
import http.server
import os
import pathlib
import signal
import socketserver
import sys
import time

NOTES = pathlib.Path(sys.argv[1])
LISTENER = os.getpid()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def note(self):
        self.mark = self.headers.get("Steadfast-Reexecuted", "new")
        with (NOTES / "asked").open("a") as notes:
            print(self.command, self.path, self.mark, file=notes)

    def is_open_in_the_listener(self):
        """Whether the listener still has its copy of the connection. It would end the connection in order by closing that copy."""
        mine = os.readlink(f"/proc/self/fd/{self.connection.fileno()}")
        for copy in pathlib.Path(f"/proc/{LISTENER}/fd").iterdir():
            try:
                if os.readlink(copy) == mine:
                    return True
            except FileNotFoundError:
                pass  # closed meanwhile
        return False

    def handle_expect_100(self):
        self.note()
        # Until this file is there, nobody is told to go on.
        while not (NOTES / "welcome").exists():
            time.sleep(0.01)
            if os.getppid() != LISTENER:
                os._exit(0)
        return super().handle_expect_100()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.note()
        if self.path == "/deadly" or self.path == "/deadly-once" and self.mark == "new":
            while self.is_open_in_the_listener():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        reply = f"{hashlib.sha256(body).hexdigest()} {self.mark}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_PUT = do_POST = answer


class Server(socketserver.ForkingMixIn, http.server.HTTPServer):
    allow_reuse_address = True


Server(("", 80), Handler).serve_forever()
