"""State snapshots of live TCP connections: restart policy `snapshot`, for servers in Python.

A server exports its state for a connection whenever the state agrees with what the server has read from the connection and written to it.
The local agent sends each snapshot to the backup. After a takeover, the server on the other node accepts the continued connection and
imports the last state. From there, it reads the input after the snapshot again, and repeats the output after the snapshot. The agent
compares the repeated output and drops it. So a server must be deterministic from a snapshot on.

The calls block. Each thread has a connection of its own to the agent, so threads do not wait for each other. In a program with asyncio,
make the calls with asyncio.to_thread(). While the agent restarts, a call retries for up to 10 s.
If one has retried in vain, exports make one attempt each until the agent answers again.

The environment variable STEADFAST_SNAPSHOTS is the path of the agent's socket. Its default is /run/steadfast/snapshots.sock. If the
variable is empty, the server runs without an agent: no snapshot is kept, and all connections are new. The variable is read when the module
is imported.

    import steadfast

    state = steadfast.import_state(connection)
    session = Session() if state is None else Session.from_bytes(state)
    while session.serve_one_request(connection):
        steadfast.export_state(connection, session.to_bytes(), wait=False)
"""

import errno
import os
import socket
import struct
import threading
import time

__all__ = [
    "SNAPSHOT_MAX",
    "export_state",
    "import_state",
    "SnapshotError",
    "Emigrated",
    "NotProtected",
    "Closed",
    "TooLarge",
    "TimedOut",
    "ProtocolError",
    "NoAgent",
]

SNAPSHOT_MAX = 16 << 20
"""Largest state in bytes."""


class SnapshotError(Exception):
    """A state was neither exported nor imported. Errors of the operating system are not of this class, but OSError."""


class Emigrated(SnapshotError):
    """The other node serves the client now. The server closes its socket and forgets the connection."""


class NotProtected(SnapshotError):
    """The socket is not a TCP connection of a service with policy snapshot."""


class Closed(SnapshotError):
    """The connection has ended."""


class TooLarge(SnapshotError):
    """The exported state is larger than `limit`, in bytes."""

    def __init__(self, limit):
        super().__init__(f"the state is larger than {limit} bytes")
        self.limit = limit


class TimedOut(SnapshotError):
    """The backup does not keep the snapshot yet. An earlier snapshot stays valid."""


class ProtocolError(SnapshotError):
    """The agent and this module have different versions."""


class NoAgent(SnapshotError):
    """The agent was away for 10 s. The cause is the error of the last attempt."""


def export_state(connection: socket.socket | int, state: bytes | bytearray | memoryview, wait: bool = True) -> bool:
    """Exports `state` as the state of `connection`, a socket or its descriptor.

    During the call, no thread reads from the connection or writes to it.

    With `wait`, the call returns when the backup keeps the snapshot. An effect outside of the connection that must not happen twice, such
    as a commit to a database, may follow only such a call. Without `wait`, the agent sends the snapshot while the server goes on.

    Returns True if a backup keeps the snapshot (without `wait`: if the agent has accepted it), and False if no backup protects the
    connection now. After an error other than Emigrated and Closed, an earlier snapshot stays valid and the server may go on.
    """
    state = memoryview(state)
    if state.nbytes > SNAPSHOT_MAX:
        raise TooLarge(SNAPSHOT_MAX)
    status, flag, size, _ = _request(connection, _EXPORT_AND_WAIT if wait else _EXPORT, state.nbytes, state)
    _check(status, size)
    return flag


def import_state(connection: socket.socket | int) -> bytes | None:
    """Returns the last exported state of `connection`, if the connection was continued after a takeover.

    Returns None if the connection is new, or is continued from its first byte. To be called once for each accepted connection, before its
    first byte is read. After NotProtected, the server may serve the connection as a new one. After any other error, it must close it.
    """
    room = _FIRST_BUFFER
    while True:
        status, flag, size, state = _request(connection, _IMPORT, room)
        if status != _BUFFER_TOO_SMALL:
            _check(status, size)
            return state if flag else None
        if not room < size <= SNAPSHOT_MAX:
            raise ProtocolError(f"impossible size of a state: {size} bytes")
        room = size


# A request is a header and, for an export, the state. Its header has the magic number, the operation, and the size of the state or of the
# caller's buffer. The connection's descriptor comes with the first byte. An answer is a header and, for an import of a continued
# connection, the state. Its header has a status, a flag and a size. Requests are idempotent.
_HEADER = struct.Struct("=IIQ")
_MAGIC = 0x31534653
_EXPORT_AND_WAIT, _EXPORT, _IMPORT = 1, 2, 3
_DONE, _TOO_LARGE, _BUFFER_TOO_SMALL = 0, 4, 5
_ERRORS = {
    1: (Emigrated, "the connection has moved to another node"),
    2: (NotProtected, "not a TCP connection of a service with policy snapshot"),
    3: (Closed, "the connection has ended"),
    6: (TimedOut, "the backup does not keep the snapshot yet"),
}
# Size of the buffer that an import tries first, in bytes.
_FIRST_BUFFER = 64 << 10

# The agent's socket. Empty: no agent is used.
_path = os.environ.get("STEADFAST_SNAPSHOTS", "/run/steadfast/snapshots.sock")
# Seconds between two attempts while the agent is away, and seconds for which it may be away.
_RETRY_EVERY = 0.02
_patience = 10
_AWAY = (FileNotFoundError, ConnectionRefusedError, BrokenPipeError, ConnectionResetError)


class _Stream:
    """A stream to the agent, closed with this object, and the process that opened it."""

    def __init__(self):
        self.process = os.getpid()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(None)  # whatever socket.setdefaulttimeout() says
        self.socket.connect(_path)

    def __del__(self):
        self.socket.close()


class _Thread(threading.local):
    """The stream that a thread's last request left open."""

    stream = None


_thread = _Thread()


def _check(status, size):
    if status == _DONE:
        return
    if status == _TOO_LARGE:
        raise TooLarge(size)
    error, text = _ERRORS.get(status, (ProtocolError, "the agent does not speak this version of the protocol"))
    raise error(text)


def _request(connection, operation, size, state=b""):
    """Makes a request, as often as needed while the agent is away. Returns the answer's status, flag, size and state."""
    if not _path:
        return _DONE, False, 0, None
    descriptor = connection if isinstance(connection, int) else connection.fileno()
    request = b"".join([_HEADER.pack(_MAGIC, operation, size), state])
    room = size if operation == _IMPORT else 0
    deadline = None
    while True:
        try:
            return _attempt(descriptor, request, room)
        except _AWAY as error:
            now = time.monotonic()
            deadline = deadline or now + _patience
            if now >= deadline:
                raise NoAgent("cannot reach the agent") from error
        time.sleep(_RETRY_EVERY)


def _attempt(descriptor, request, room):
    """Makes a request once. The stream stays open if another request may follow on it."""
    stream, _thread.stream = _thread.stream, None
    # After a fork, the child must not use the stream of its parent.
    if stream is None or stream.process != os.getpid():
        stream = _Stream()
    answer = _exchange(stream.socket, descriptor, request, room)
    if answer[0] in (_DONE, _BUFFER_TOO_SMALL):
        _thread.stream = stream
    return answer


def _exchange(stream, descriptor, request, room):
    unsent = None
    try:
        sent = socket.send_fds(stream, [request], [descriptor])
        stream.sendall(memoryview(request)[sent:])
    except _AWAY as error:
        # An agent that refuses a request may close the stream before it has read the whole state. Its answer counts then.
        unsent = error
    try:
        header = _receive(stream, _HEADER.size)
    except _AWAY as error:
        raise unsent or error
    status, flag, size = _HEADER.unpack(header)
    state = None
    if status == _DONE and flag and room:
        if size > room:
            raise ProtocolError(f"a state of {size} bytes for a buffer of {room}")
        state = _receive(stream, size)
    return status, flag != 0, size, state


def _receive(stream, size):
    """Receives exactly `size` bytes."""
    received = bytearray(size)
    view = memoryview(received)
    while view:
        count = stream.recv_into(view)
        if count == 0:
            raise ConnectionResetError(errno.ECONNRESET, "the agent has closed the stream")
        view = view[count:]
    return bytes(received)
