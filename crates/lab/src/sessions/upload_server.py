"""upload_server.py FILE ADDRESS:PORT...: stores the body of an HTTP PUT with chunked coding in FILE, and answers with its length.

The server exports its state within the body, after at most EVERY bytes. So another server goes on in the middle of an upload.
"""

import enum
import functools
import os
import struct
import sys

import tcp_server

# Bytes of the body from one state to the next.
EVERY = 64 * 1024
FIXED = struct.Struct("=BQQ")


class Phase(enum.IntEnum):
    """What comes next: the head, the line with a chunk's size, a chunk's data, the end of its line, the trailers, or nothing."""

    HEAD, SIZE, DATA, DATA_END, TRAILERS, DONE = range(6)


class Upload:
    """One connection."""

    def __init__(self, connection, file):
        self.connection = connection
        self.file = file
        self.phase, self.left, self.length = Phase.HEAD, 0, 0
        self.ahead = b""
        self.exported = 0

    def export(self):
        tcp_server.export(self.connection, FIXED.pack(self.phase, self.left, self.length) + self.ahead)
        self.exported = self.length

    def read(self):
        part = self.connection.recv(65536)
        if not part:
            raise EOFError
        self.ahead += part

    def take(self, end):
        """Takes what comes before `end`, and `end` itself."""
        while end not in self.ahead:
            self.read()
        taken, _, self.ahead = self.ahead.partition(end)
        return taken

    def step(self):
        match self.phase:
            case Phase.HEAD:
                self.take(b"\r\n\r\n")
                self.phase = Phase.SIZE
            case Phase.SIZE:
                self.left = int(self.take(b"\r\n"), 16)
                self.phase = Phase.DATA if self.left else Phase.TRAILERS
            case Phase.DATA:
                if not self.ahead:
                    self.read()
                part, self.ahead = self.ahead[: self.left], self.ahead[self.left :]
                os.pwrite(self.file, part, self.length)
                self.length += len(part)
                self.left -= len(part)
                if not self.left:
                    self.phase = Phase.DATA_END
            case Phase.DATA_END:
                self.take(b"\r\n")
                self.phase = Phase.SIZE
            case Phase.TRAILERS:
                if not self.take(b"\r\n"):
                    self.phase = Phase.DONE
                    self.export()

    def serve(self):
        state = tcp_server.import_state(self.connection)
        if state is not None:
            self.phase, self.left, self.length = FIXED.unpack_from(state)
            self.ahead = state[FIXED.size :]
            self.exported = self.length
        while self.phase != Phase.DONE:
            self.step()
            if self.length - self.exported >= EVERY:
                self.export()
        body = f"{self.length}\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.connection.sendall((head + body).encode())


def serve(connection, file):
    Upload(connection, file).serve()


def main():
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
    tcp_server.run(sys.argv[2:], functools.partial(serve, file=file), (ValueError,))


if __name__ == "__main__":
    main()
