#!/usr/bin/env python3
"""file_server.py DIRECTORY ADDRESS:PORT...: serves the files below a directory over HTTP/1.1, with GET and HEAD.

This is the server of Figure 4 in Sultan et al., "Migratory TCP". It exports its state after each block of a file, and after each request.
If the server or its node fails during a download, the server on the other node goes on from the last block.

From a snapshot on, the answers depend only on the input and on the files, which both nodes must have. So an answer has no Date, and no
connection is closed because it is idle.
"""

import dataclasses
import functools
import os
import re
import socket
import stat
import struct
import sys
import urllib.parse

import tcp_server

BLOCK = 256 * 1024
HEAD_MAX = 8192
NAME_MAX = 1023


@dataclasses.dataclass
class Snapshot:
    """The state of a connection."""

    # The file that is being sent, below the directory. Empty between two requests.
    file: bytes = b""
    # The bytes of the file from `offset` to `end` are still to be sent.
    offset: int = 0
    end: int = 0
    # Whether the connection ends after the current answer.
    closes: bool = False
    # Input that was read, but not used yet: the beginning of the next requests.
    ahead: bytes = b""

    FIXED = struct.Struct("=QQ?H")

    def to_bytes(self):
        return self.FIXED.pack(self.offset, self.end, self.closes, len(self.file)) + self.file + self.ahead

    @classmethod
    def from_bytes(cls, state):
        offset, end, closes, length = cls.FIXED.unpack_from(state)
        rest = state[cls.FIXED.size :]
        return cls(rest[:length], offset, end, closes, rest[length:])


class BadRequest(Exception):
    """The request is malformed."""

    def __init__(self, method=b""):
        super().__init__()
        self.method = method


def decode_path(target):
    """The path of a request's target, without its query. It stays below the directory."""
    path = target.lstrip(b"/").partition(b"?")[0]
    if not re.fullmatch(rb"([^%]|%[0-9A-Fa-f]{2})*", path):
        return None
    path = urllib.parse.unquote_to_bytes(path)
    is_below = not path.startswith(b"/") and b".." not in path.split(b"/")
    return path if is_below and b"\0" not in path and len(path) <= NAME_MAX else None


def parse_head(head):
    """The method, the path and whether the connection ends. `head` has no empty line at its end. GET and HEAD have no body."""
    if b"\0" in head:
        raise BadRequest
    request_line, *fields = head.split(b"\r\n")
    match request_line.split(b" "):
        case [method, target, (b"HTTP/1.0" | b"HTTP/1.1") as version] if method and target.startswith(b"/"):
            pass
        case _:
            raise BadRequest
    has_body = method not in (b"GET", b"HEAD")
    # The body of another method is not read, so the connection cannot go on.
    closes = has_body or version == b"HTTP/1.0"
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or not name or name[-1:].isspace():
            raise BadRequest(method)
        name, value = name.lower(), value.lstrip(b" \t")
        closes |= name == b"connection" and b"close" in value.lower()
        is_body = name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        if is_body and not has_body:
            raise BadRequest(method)
    path = b"" if has_body else decode_path(target)
    if path is None:
        raise BadRequest(method)
    return method, path, closes


class Session:
    """One connection. An end of the connection, from either side, is a ConnectionError or an EOFError."""

    def __init__(self, connection, directory):
        self.connection = connection
        self.directory = directory
        self.now = Snapshot()

    def serve(self):
        state = tcp_server.import_state(self.connection)
        if state is not None:
            self.now = Snapshot.from_bytes(state)
        if self.now.file:
            file = self.open_file()
            if file is None:
                raise EOFError
            with file:
                self.send_file(file)
            self.end_answer()
        while not self.now.closes:
            self.answer_request()

    def export(self):
        tcp_server.export(self.connection, self.now.to_bytes())

    def open_file(self):
        """Opens a regular file below the directory. Returns None if there is none of this name."""
        try:
            # Without O_NONBLOCK, the opening of a named pipe would wait for its writer.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            file = open(os.open(self.now.file, flags, dir_fd=self.directory), "rb")
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        return None

    def send_file(self, file):
        """Sends the rest of the file, with a snapshot after each block."""
        now = self.now
        while now.offset < now.end:
            count = min(BLOCK, now.end - now.offset)
            if self.connection.sendfile(file, now.offset, count) < count:
                raise EOFError  # the file has become shorter than its answer's Content-Length
            now.offset += count
            if now.offset < now.end:
                self.export()

    def end_answer(self):
        """Ends the current answer: the connection is between two requests."""
        self.now.file, self.now.offset, self.now.end = b"", 0, 0
        self.export()

    def read_head(self):
        """Reads until `ahead` begins with a whole head. Takes the head, without its empty line."""
        now = self.now
        while True:
            # Empty lines before a request are ignored (RFC 9112, section 2.2).
            while now.ahead.startswith(b"\r\n"):
                now.ahead = now.ahead[2:]
            head, end, rest = now.ahead.partition(b"\r\n\r\n")
            if end:
                now.ahead = rest
                return head
            if len(now.ahead) == HEAD_MAX:
                raise BadRequest
            received = self.connection.recv(HEAD_MAX - len(now.ahead))
            if not received:
                raise EOFError
            now.ahead += received

    def answer_request(self):
        try:
            method, self.now.file, self.now.closes = parse_head(self.read_head())
        except BadRequest as error:
            self.now.closes = True
            return self.answer_error("400 Bad Request", error.method)
        if method not in (b"GET", b"HEAD"):
            return self.answer_error("405 Method Not Allowed", method, "Allow: GET, HEAD\r\n")
        file = self.open_file()
        if file is None:
            return self.answer_error("404 Not Found", method)
        with file:
            self.now.end = os.fstat(file.fileno()).st_size
            has_body = method == b"GET" and self.now.end > 0
            self.send_head("200 OK", self.now.end, flags=socket.MSG_MORE if has_body else 0)
            if has_body:
                self.send_file(file)
        self.end_answer()

    def answer_error(self, status, method, fields=""):
        body = f"{status}\n".encode()
        self.send_head(status, len(body), fields)
        if method != b"HEAD":
            self.connection.sendall(body)
        self.end_answer()

    def send_head(self, status, length, fields="", flags=0):
        closes = "Connection: close\r\n" if self.now.closes else ""
        head = f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}{closes}\r\n"
        self.connection.sendall(head.encode(), flags)


def serve(connection, directory):
    Session(connection, directory).serve()


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: file_server.py DIRECTORY ADDRESS:PORT...")
    directory = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
    tcp_server.run(sys.argv[2:], functools.partial(serve, directory=directory), (struct.error,))


if __name__ == "__main__":
    main()
