#!/usr/bin/env python3
"""stream_server.py [-k CHUNKS] [-s BYTES] [-d BYTES] ADDRESS:PORT...: streams bytes at a given rate, as the media server in Sultan et al.,
"Migratory TCP".

A client sends one line, "STREAM total chunk interval\\n": the number of bytes that it wants, the bytes in one chunk (at most 64 KiB), and the
time from one chunk to the next in microseconds. Byte i of the stream is (i * 31 + 7) mod 251. The server then ends the connection. After any
other line, it ends the connection at once.
"""

import argparse
import dataclasses
import functools
import re
import struct
import time

import steadfast
import tcp_server

CHUNK_MAX = 64 * 1024
LINE_MAX = 64
# How many times longer a chunk takes on a connection whose server has become slow (-d).
SLOWDOWN = 4
REQUEST = re.compile(rb"STREAM ([0-9]{1,19}) ([0-9]{1,9}) ([0-9]{1,9})\n")
# The stream repeats itself after 251 bytes.
PATTERN = bytes((at * 31 + 7) % 251 for at in range(251)) * (CHUNK_MAX // 251 + 2)


@dataclasses.dataclass
class Snapshot:
    """The state of a connection."""

    # Bytes of the whole stream.
    total: int
    # Bytes of a chunk.
    chunk: int
    # Microseconds from one chunk to the next.
    interval: int
    # Bytes that were sent.
    sent: int = 0

    FORMAT = struct.Struct("=QQII")

    def to_bytes(self, size):
        """The state, padded to `size`."""
        return self.FORMAT.pack(self.total, self.sent, self.chunk, self.interval).ljust(size, b"\0")

    @classmethod
    def from_bytes(cls, state):
        total, sent, chunk, interval = cls.FORMAT.unpack_from(state)
        if not 0 < chunk <= CHUNK_MAX:
            raise ValueError("the state of another version")
        return cls(total, chunk, interval, sent)


def read_request(connection):
    """Reads the request's line. Returns None if it is not a valid one. A client sends nothing after the line."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_MAX:
        received = connection.recv(1)
        if not received:
            return None
        line += received
    request = REQUEST.fullmatch(line)
    if request is None:
        return None
    total, chunk, interval = map(int, request.groups())
    return Snapshot(total, chunk, interval) if 0 < chunk <= CHUNK_MAX else None


def send_stream(connection, now, options):
    """Sends the rest of the stream."""
    next_at = time.monotonic()
    begin = now.sent
    while now.sent < now.total:
        size = min(now.chunk, now.total - now.sent)
        start = now.sent % 251
        connection.sendall(PATTERN[start : start + size])
        now.sent += size
        # Counted from the stream's start, so that a server that goes on makes snapshots at the same places.
        if options.k > 0 and now.sent // now.chunk % options.k == 0:
            tcp_server.export(connection, now.to_bytes(options.s))
        is_slow = options.d is not None and now.sent - begin >= options.d
        next_at += now.interval / 1e6 * (SLOWDOWN if is_slow else 1)
        time.sleep(max(0, next_at - time.monotonic()))


def serve(connection, options):
    state = tcp_server.import_state(connection)
    now = read_request(connection) if state is None else Snapshot.from_bytes(state)
    if now is not None:
        send_stream(connection, now, options)


def main():
    parser = argparse.ArgumentParser(description="Streams bytes at a given rate.")
    parser.add_argument("-k", metavar="CHUNKS", type=int, default=16, help="chunks from one snapshot to the next (default 16; 0: no snapshots)")
    parser.add_argument("-s", metavar="BYTES", type=int, default=0, help="size to which snapshots are padded (default 0: no padding)")
    parser.add_argument("-d", metavar="BYTES", type=int, help=f"bytes of a connection after which a chunk takes {SLOWDOWN} times as long (default: never)")
    parser.add_argument("addresses", metavar="ADDRESS:PORT", nargs="+")
    options = parser.parse_args()
    if options.k < 0 or not 0 <= options.s <= steadfast.SNAPSHOT_MAX:
        parser.error(f"CHUNKS is at least 0, BYTES from 0 to {steadfast.SNAPSHOT_MAX}")
    handle = functools.partial(serve, options=options)
    tcp_server.run(options.addresses, handle, (struct.error, ValueError))


if __name__ == "__main__":
    main()
