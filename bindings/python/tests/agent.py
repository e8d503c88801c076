"""An agent that a test plays: it takes the library's requests, and answers as the test says."""

import dataclasses
import os
import pathlib
import socket
import struct
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

HEADER = struct.Struct("=IIQ")
MAGIC = 0x31534653
EXPORT_AND_WAIT, EXPORT, IMPORT = 1, 2, 3


@dataclasses.dataclass
class Request:
    # Number of the library's stream that the request came on.
    stream: int
    operation: int
    size: int
    state: bytes
    connection: socket.socket


def receive(stream, number=0):
    """The next request on `stream`. None: the library has closed it."""
    header, descriptors, _, _ = socket.recv_fds(stream, HEADER.size, 4)
    if not header:
        return None
    header += stream.recv(HEADER.size - len(header), socket.MSG_WAITALL) if len(header) < HEADER.size else b""
    magic, operation, size = HEADER.unpack(header)
    assert magic == MAGIC
    assert len(descriptors) == 1
    state = b""
    while operation != IMPORT and len(state) < size:
        state += stream.recv(size - len(state))
    return Request(number, operation, size, state, socket.socket(fileno=descriptors[0]))


def answer(stream, status, flag=0, size=0, state=b""):
    stream.sendall(HEADER.pack(status, flag, size) + state)


class Agent:
    """Runs `script(listener)` in a thread, at a socket in a directory of its own."""

    def __init__(self, script):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "snapshots.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.errors = []
        self.thread = threading.Thread(target=self.run, args=(script,), daemon=True)
        self.thread.start()

    def run(self, script):
        try:
            script(self.listener)
        except Exception as error:
            self.errors.append(error)

    def finish(self):
        self.thread.join()
        self.close()
        if self.errors:
            raise self.errors[0]

    def close(self):
        self.listener.close()
        self.directory.cleanup()


def answering(handle):
    """A script that answers each request on each stream with what `handle(request)` returns."""

    def run_stream(stream, number):
        with stream:
            while request := receive(stream, number):
                with request.connection:
                    reply = handle(request)
                answer(stream, *reply)

    def script(listener):
        number = 0
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=run_stream, args=(stream, number), daemon=True).start()
            number += 1

    return script
