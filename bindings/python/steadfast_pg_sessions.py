#!/usr/bin/env python3
"""Keeps PostgreSQL sessions in the middle of their transactions while front-ends fail and their successors come.

    steadfast_pg_sessions.py [--hold SECONDS] LISTEN-ADDRESS:PORT DATABASE-ADDRESS:PORT

PostgreSQL aborts a transaction when its front-end fails. This program stands between the front-ends and the database, on the database's host,
and speaks PostgreSQL's protocol (version 3) to both. If a front-end fails in the middle of a transaction, the program keeps the back-end, and
gives it to the next front-end with the same session, user and database. The successor rolls back to its last savepoint and goes on
(Sultan et al., "Migratory TCP", 6.3.1; steadfast_pg.savepoint and steadfast_pg.resume_db). If no successor comes within the time of --hold,
the transaction is aborted (6.4.1): it keeps its locks meanwhile.

A successor logs in at the database as every front-end does, so this program needs no password. If a front-end comes while another one has
the session, the other one has lost it: its connection ends. If this program fails, the transactions are aborted, as without it.

A session is named by the start-up parameter application_name. Connections without a name pass. The program reads no TLS: protect the way
between the hosts otherwise.
"""

import argparse
import asyncio
import contextlib
import struct
import sys

# Requests that a client may send in the place of a start-up message.
CANCEL, TLS, GSS = 80877102, 80877103, 80877104
PROTOCOL_3 = 3 << 16
STARTUP_MAX = 10_000
# A message may be long, but its length is not believed beyond this.
MESSAGE_MAX = 1 << 30
# Seconds in which a client must have logged in, and in which a back-end must have ended what a failed front-end has begun.
LOGIN_LIMIT = 60
ENDING_LIMIT = 60

IDLE, IN_TRANSACTION, FAILED = b"I", b"T", b"E"


class Malformed(Exception):
    """A peer does not speak PostgreSQL's protocol."""


def body_length(head):
    """The number of bytes after a message's head."""
    (length,) = struct.unpack(">I", head[1:])
    if not 4 <= length <= MESSAGE_MAX:
        raise Malformed(f"a message of {length} bytes")
    return length - 4


async def read_message(reader):
    """A whole message: its type and its bytes, with type and length. Raises IncompleteReadError at the end of the stream."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(body_length(head))


async def read_startup(reader):
    """The code and the bytes of a message that has no type."""
    head = await reader.readexactly(4)
    (length,) = struct.unpack(">I", head)
    if not 8 <= length <= STARTUP_MAX:
        raise Malformed(f"a start-up message of {length} bytes")
    rest = await reader.readexactly(length - 4)
    return struct.unpack(">I", rest[:4])[0], head + rest


def parameters(startup):
    """The parameters of a start-up message."""
    words = startup[8:].split(b"\0")
    return dict(zip(words[::2], words[1::2]))


def message(kind, body=b""):
    return kind + struct.pack(">I", len(body) + 4) + body


class Backend:
    """A connection to the database, whose client has logged in."""

    def __init__(self, reader, writer, greeting):
        self.reader = reader
        self.writer = writer
        # The head of the message that is being read.
        self.head = b""
        # What the database said at the end of the login: its parameters by name, and the key for cancel requests.
        self.settings = {}
        self.key = b""
        for kind, whole in greeting:
            if kind == b"S":
                self.note_setting(whole)
            elif kind == b"K":
                self.key = whole
        # Whether the front-end may send the next query: IDLE, IN_TRANSACTION or FAILED. None: the back-end is at work.
        self.status = IDLE
        # Number of requests that the back-end answers with ReadyForQuery, and has not answered.
        self.expected = 0
        # Whether messages of the extended protocol await their Sync, and whether the back-end awaits data.
        self.needs_sync = False
        self.copies_in = False

    async def read(self):
        """The next message of the database: its type and its bytes. If the task is cancelled, nothing of the message is lost."""
        if not self.head:
            self.head = await self.reader.readexactly(5)
        rest = await self.reader.readexactly(body_length(self.head))
        whole, self.head = self.head + rest, b""
        kind = whole[:1]
        if kind == b"S":
            self.note_setting(whole)
        elif kind == b"G":
            self.copies_in = True
        elif kind == b"Z":
            self.status = whole[5:6]
            self.expected = max(0, self.expected - 1)
            self.copies_in = False
        return kind, whole

    def note_setting(self, whole):
        self.settings[whole[5:].split(b"\0")[0]] = whole

    def note_request(self, kind):
        """Takes the type of what a front-end says."""
        if kind in b"QSF":
            self.expected += 1
            self.needs_sync = False
        elif kind in b"PBDECH":
            self.needs_sync = True
        elif kind in b"cf":
            self.copies_in = False
        if kind in b"QSFPBDECH":
            self.status = None

    def greeting(self):
        """The end of the login, for a front-end that continues the session."""
        accepted = message(b"R", struct.pack(">I", 0))
        return accepted + b"".join(self.settings.values()) + self.key + message(b"Z", self.status)

    async def settle(self):
        """Ends what a failed front-end has begun, and reads the answers, so that the next front-end begins with a query of its own."""
        if self.copies_in:
            self.writer.write(message(b"f", b"the front-end has failed\0"))
        if self.needs_sync:
            self.note_request(b"S")
            self.writer.write(message(b"S"))
        async with asyncio.timeout(ENDING_LIMIT):
            while self.expected > 0:
                kind, _ = await self.read()
                if kind == b"G":
                    self.writer.write(message(b"f", b"the front-end has failed\0"))

    def close(self):
        self.writer.close()


class Session:
    """The front-ends of one session, one after the other. One of them has the back-end."""

    def __init__(self):
        self.lock = asyncio.Lock()
        # The task that has the back-end: it relays for a front-end, or holds the back-end for the next one.
        self.owner = None
        # The back-end that the owner leaves to the next front-end.
        self.left = None


class SessionKeeper:
    """Relays between front-ends and the database at `database`, which is a host and a port, or the path of a Unix socket."""

    def __init__(self, database, hold):
        self.database = database
        self.hold = hold
        # By session, user and database.
        self.sessions = {}

    async def connect(self):
        if isinstance(self.database, str):
            return await asyncio.open_unix_connection(self.database)
        return await asyncio.open_connection(*self.database)

    async def serve(self, reader, writer):
        """Serves one front-end."""
        try:
            await self.serve_front_end(reader, writer)
        except (Malformed, OSError, EOFError, TimeoutError, asyncio.IncompleteReadError) as error:
            if not isinstance(error, asyncio.IncompleteReadError):
                print(f"a front-end is left: {error}", file=sys.stderr)
        finally:
            writer.close()

    async def serve_front_end(self, reader, writer):
        async with asyncio.timeout(LOGIN_LIMIT):
            code, startup = await read_startup(reader)
            while code in (TLS, GSS):
                writer.write(b"N")
                code, startup = await read_startup(reader)
            if code != CANCEL and code >> 16 != PROTOCOL_3 >> 16:
                raise Malformed(f"a start-up message of protocol {code >> 16}")
            server = await self.connect()
            server[1].write(startup)
            if code == CANCEL:
                server[1].close()
                return
            greeting = await self.log_in((reader, writer), server)
        if greeting is None:
            return
        backend = Backend(*server, greeting)
        names = parameters(startup)
        key = tuple(names.get(name, b"") for name in (b"application_name", b"user", b"database"))
        if not key[0]:
            writer.write(backend.greeting())
            await relay((reader, writer), backend)
            backend.close()
            return
        await self.serve_session(key, (reader, writer), backend)

    async def log_in(self, front_end, server):
        """Relays a login. Returns what the database says at its end, or None if it is refused. The front-end has not heard the end yet."""
        (reader, writer), (server_reader, server_writer) = front_end, server
        is_accepted, greeting = False, []
        while True:
            kind, whole = await read_message(server_reader)
            if kind == b"E":
                writer.write(whole)
                await writer.drain()
                server_writer.close()
                return None
            if kind == b"Z":
                return greeting
            if is_accepted:
                greeting.append((kind, whole))
                continue
            (request,) = struct.unpack(">I", whole[5:9]) if kind == b"R" else (None,)
            is_accepted = request == 0
            if not is_accepted:
                writer.write(whole)
                # Requests 12 (SASLFinal) and 0 need no answer.
                if kind == b"R" and request != 12:
                    server_writer.write((await read_message(reader))[1])

    async def serve_session(self, key, front_end, backend):
        """Gives the front-end the session's back-end if there is one, and otherwise `backend`."""
        session = self.sessions.setdefault(key, Session())
        async with session.lock:
            if session.owner is not None:
                session.owner.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await session.owner
            if session.left is not None:
                backend.writer.write(message(b"X"))
                backend.close()
                backend, session.left = session.left, None
            front_end[1].write(backend.greeting())
            session.owner = owner = asyncio.create_task(self.own(key, session, front_end, backend))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(owner)

    async def own(self, key, session, front_end, backend):
        """Relays for a front-end, then holds its back-end for the next one. If the task is cancelled, the next one is there."""
        try:
            is_ended = await relay(front_end, backend)
            if not is_ended:
                await self.hold_for_successor(backend)
        except asyncio.CancelledError:
            front_end[1].close()
            session.left = await settled(backend)
            raise
        finally:
            if session.left is None:
                backend.close()
        if self.sessions.get(key) is session and not session.lock.locked():
            del self.sessions[key]

    async def hold_for_successor(self, backend):
        """Returns when the back-end's transaction has ended, or nobody has come for it."""
        if await settled(backend) is None:
            return
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, OSError, Malformed):
            async with asyncio.timeout(self.hold):
                while True:  # the database may say something without being asked, or end
                    await backend.read()


async def settled(backend):
    """The back-end, if it is ready for a query of the next front-end and in a transaction. Otherwise None."""
    try:
        await backend.settle()
    except (Malformed, OSError, TimeoutError, asyncio.IncompleteReadError):
        return None
    return None if backend.status == IDLE else backend


async def relay(front_end, backend):
    """Relays whole messages until one side ends. Returns whether the session is over: the front-end has said so, or the database has ended."""
    reader, writer = front_end

    async def forward():
        while True:
            try:
                kind, whole = await read_message(reader)
            except (asyncio.IncompleteReadError, OSError, Malformed):
                return False
            if kind == b"X":
                return True
            backend.note_request(kind)
            backend.writer.write(whole)
            await backend.writer.drain()

    async def back():
        while True:
            try:
                _, whole = await backend.read()
            except (asyncio.IncompleteReadError, OSError, Malformed):
                return True
            with contextlib.suppress(OSError):  # the other direction notices that the front-end has failed
                writer.write(whole)
                await writer.drain()

    tasks = [asyncio.create_task(forward()), asyncio.create_task(back())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return any(task.result() for task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def endpoint(text):
    """HOST:PORT, [IPV6]:PORT, or the path of a Unix socket."""
    if text.startswith("/"):
        return text
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"not ADDRESS:PORT, nor a path: {text}")
    return host.strip("[]"), int(port)


async def run(listen, database, hold):
    """Serves for ever. Prints one line when it is ready."""
    keeper = SessionKeeper(database, hold)
    if isinstance(listen, str):
        server = await asyncio.start_unix_server(keeper.serve, listen)
    else:
        server = await asyncio.start_server(keeper.serve, *listen)
    names = [listener.getsockname() for listener in server.sockets]
    print("ready:", *(name if isinstance(name, str) else f"{name[0]}:{name[1]}" for name in names), flush=True)
    async with server:
        await server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description="Keeps PostgreSQL sessions while front-ends fail and their successors come.")
    parser.add_argument("--hold", metavar="SECONDS", type=float, default=10, help="time that a session waits for a successor (default 10)")
    parser.add_argument("listen", metavar="LISTEN", type=endpoint, help="ADDRESS:PORT, or the path of a Unix socket")
    parser.add_argument("database", metavar="DATABASE", type=endpoint, help="the database's ADDRESS:PORT, or the path of its Unix socket")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options.listen, options.database, options.hold))


if __name__ == "__main__":
    main()
