#!/usr/bin/env python3
"""pg_front_end.py [--create] [--wrong-order] [--cgi SCRIPT] DSN ADDRESS:PORT...: executes series of transactions in PostgreSQL, over HTTP/1.1.

This is the front-end of section 6.6 in Sultan et al., "Migratory TCP". A request is a series of transactions:

    POST /series HTTP/1.1
    Client: NAME
    Content-Length: 28

    ITEM-0 100
    ITEM-1 -20

Each line is one transaction, which adds an amount to the client's balance. The answer has one chunk per transaction, in order: "ITEM
committed" or "ITEM aborted", and a line break. The answer to GET / is 204.

Each transaction is executed and answered exactly once, even if the front-end or its node fails. The front-end exports its state inside each
transaction, before the commit. The front-end on the other node goes on from the last snapshot. From a snapshot on, the answers depend only
on the input and on the outcomes of the transactions, which the database keeps. If the database is restarted, the front-end waits for it.

With --cgi, a child process executes each transaction: a CGI script (RFC 3875), such as pg_cgi.py.
"""

import argparse
import dataclasses
import functools
import json
import os
import re
import sys
import time
import urllib.parse

import psycopg2

import steadfast
import steadfast_pg
import tcp_server

HEAD_MAX = 8192
BODY_MAX = 64 * 1024
# Number of times that the database may fail during one item. Then the client's connection is closed.
ITEM_TRIES = 5
# Seconds to wait for the database, and between two attempts to connect.
DATABASE_PATIENCE = 30
RETRY_EVERY = 0.1

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
NAME = r"[!-~]{1,200}"
# An amount may be too large for the database. Its transaction is aborted then.
SERIES = rf"({NAME} -?[0-9]{{1,30}}\n)+"

# The ledger has no unique constraint, so that a duplicate would show.
SCHEMA = """
SELECT pg_advisory_xact_lock(hashtext('steadfast ledger'));  -- two front-ends may do this at the same time
CREATE TABLE IF NOT EXISTS ledger (client text, item text, amount bigint);
CREATE TABLE IF NOT EXISTS accounts (client text PRIMARY KEY, balance bigint);
"""


@dataclasses.dataclass
class Snapshot:
    """The state of a connection."""

    # Name of the session in the database.
    session: str = dataclasses.field(default_factory=steadfast_pg.new_session)
    # The client of the current series.
    client: str = ""
    # The lines of the series that are not answered yet. The answer's head was sent. Empty between two requests.
    lines: str = ""
    # Id of the first line's transaction, if the transaction is ending. None: the first line is still to be executed.
    ending: str | None = None
    # Whether the connection ends after the current answer.
    closes: bool = False
    # Input that was read, but not used yet: the beginning of the next requests.
    ahead: bytes = b""

    def to_bytes(self):
        return json.dumps(dataclasses.asdict(self) | {"ahead": self.ahead.decode("latin-1")}).encode()

    @classmethod
    def from_bytes(cls, state):
        fields = json.loads(state)
        return cls(**fields | {"ahead": fields["ahead"].encode("latin-1")})


class Refused(Exception):
    """The request gets an error as its answer. The argument is the status."""


@dataclasses.dataclass
class Request:
    # The method and the path.
    target: str
    client: str
    # Bytes of the body.
    length: int
    closes: bool


def parse_head(head):
    """`head` has no empty line at its end."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    request = re.fullmatch(r"(\S+ /\S*) HTTP/1\.1", request_line)
    if not request:
        raise Refused("400 Bad Request")
    fields = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        is_repeated = name in fields and name in ("client", "content-length")
        if not colon or not name or name[-1].isspace() or is_repeated:
            raise Refused("400 Bad Request")
        fields[name] = value.strip(" \t")
    if "transfer-encoding" in fields:
        raise Refused("411 Length Required")
    length = fields.get("content-length", "0")
    if not re.fullmatch(r"[0-9]{1,9}", length):
        raise Refused("400 Bad Request")
    if int(length) > BODY_MAX:
        raise Refused("413 Content Too Large")
    closes = "close" in fields.get("connection", "").lower()
    return Request(request[1], fields.get("client", ""), int(length), closes)


def parse_series(client, body):
    """The lines of a series. Each one ends with a line break."""
    lines = body.decode("latin-1")
    if not lines.endswith("\n"):
        lines += "\n"
    if not re.fullmatch(NAME, client) or not re.fullmatch(SERIES, lines):
        raise Refused("400 Bad Request")
    return lines


def commit_in_wrong_order(db, connection, make_state):
    """Commits before the export. If the front-end fails between the two, the transaction is executed twice (paper, 6.3.2)."""
    txn_id = steadfast_pg.get_txn_id(db)
    db.commit()
    steadfast.export_state(connection, make_state(txn_id), wait=True)
    return steadfast_pg.outcome(db, txn_id)


def execute_transaction(db, connection, make_state, transaction, commit=steadfast_pg.commit_exactly_once):
    """Executes the transaction of an item: (client, item, amount). Returns its outcome."""
    client, item, amount = transaction
    try:
        with db.cursor() as cursor:
            cursor.execute("INSERT INTO ledger VALUES (%s, %s, %s)", [client, item, amount])
            cursor.execute("INSERT INTO accounts VALUES (%s, 0) ON CONFLICT DO NOTHING", [client])
            cursor.execute("UPDATE accounts SET balance = balance + %s WHERE client = %s", [amount, client])
    except psycopg2.Error:
        # If the connection to the database is lost, this raises an error too.
        return steadfast_pg.abort_exactly_once(db, connection, make_state)
    return commit(db, connection, make_state)


class Session:
    """One connection. An end of the connection, from either side, is a ConnectionError or an EOFError."""

    def __init__(self, connection, dsn, commit, cgi):
        self.connection = connection
        self.dsn = dsn
        self.commit = commit
        # The script that executes the transactions; None: this process does.
        self.cgi = cgi
        self.db = None
        self.now = Snapshot()

    def serve(self):
        state = tcp_server.import_state(self.connection)
        if state is not None:
            self.now = Snapshot.from_bytes(state)
            self.reconnect()
            if self.now.lines:
                self.run_series()
        while not self.now.closes:
            self.answer_request()

    def close(self):
        if self.db is not None:
            self.db.close()

    def export(self, wait=False):
        tcp_server.export(self.connection, self.now.to_bytes(), wait)

    def reconnect(self):
        """Connects to the database. Waits while the database is being restarted."""
        self.close()
        deadline = time.monotonic() + DATABASE_PATIENCE
        while True:
            try:
                self.db = steadfast_pg.reconnect_db(self.dsn, self.now.session)
                return
            except psycopg2.OperationalError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(RETRY_EVERY)

    def answer_request(self):
        try:
            request, body = self.read_request()
            if request.target == "GET /":
                self.now.closes = request.closes
                self.answer_status("204 No Content")
            elif request.target == "POST /series":
                self.start_series(request, parse_series(request.client, body))
                self.run_series()
            else:
                raise Refused("404 Not Found")
        except Refused as refused:
            self.now.closes = True  # the body is not read
            self.answer_status(f"{refused}\r\nContent-Length: 0")

    def read_request(self):
        """Reads a whole request. Returns it, and its body."""
        now = self.now
        while (end := now.ahead.find(b"\r\n\r\n", 0, HEAD_MAX)) < 0:
            if len(now.ahead) >= HEAD_MAX:
                raise Refused("400 Bad Request")
            self.read_more()
        request = parse_head(now.ahead[:end])
        begin = end + len(b"\r\n\r\n")
        while len(now.ahead) < begin + request.length:
            self.read_more()
        body, now.ahead = now.ahead[begin : begin + request.length], now.ahead[begin + request.length :]
        return request, body

    def read_more(self):
        received = self.connection.recv(HEAD_MAX)
        if not received:
            raise EOFError
        self.now.ahead += received

    def send(self, text):
        self.connection.sendall(text.encode("latin-1"))

    def answer_status(self, status):
        self.send(f"HTTP/1.1 {status}\r\n{self.close_field()}\r\n")
        self.export()

    def close_field(self):
        return "Connection: close\r\n" if self.now.closes else ""

    def start_series(self, request, lines):
        self.now.client, self.now.lines, self.now.closes = request.client, lines, request.closes
        self.send(f"{HEAD}{self.close_field()}\r\n")
        # A successor needs the session's name to end the session's back-end, which may hold locks. So the export before the connection's
        # first transaction waits.
        self.export(wait=self.db is None)
        if self.db is None:
            self.reconnect()

    def run_series(self):
        """Executes and answers the rest of the series."""
        now = self.now
        while now.lines:
            line, _, rest = now.lines.partition("\n")
            item, amount = line.split(" ")
            answer = f"{item} {self.finish_item(item, int(amount))}\n"
            self.send(f"{len(answer):x}\r\n{answer}\r\n")
            now.lines, now.ending = rest, None
        self.send("0\r\n\r\n")
        self.export()

    def finish_item(self, item, amount):
        """Finishes the first item, also if the database fails meanwhile. Returns its outcome."""
        for tries_left in reversed(range(ITEM_TRIES)):
            try:
                if self.now.ending is not None:
                    return steadfast_pg.outcome(self.db, self.now.ending)
                return self.execute_item(item, amount)
            except psycopg2.Error as error:
                if not tries_left:
                    raise
                print(f"the connection to the database is lost; a new one is made: {error}", file=sys.stderr)
            # If the client has moved, this export raises an error. Without it, this front-end would end its successor's back-end.
            self.export(wait=True)
            self.reconnect()

    def execute_item(self, item, amount):
        """Executes the transaction of an item. Returns its outcome."""
        transaction = self.now.client, item, amount
        if self.cgi is None:
            return execute_transaction(self.db, self.connection, self.make_ending, transaction, self.commit)
        query = urllib.parse.urlencode(dict(zip(["client", "item", "amount"], transaction)))
        request = {"GATEWAY_INTERFACE": "CGI/1.1", "REQUEST_METHOD": "GET", "QUERY_STRING": query, "DSN": self.dsn}
        code, output = steadfast_pg.run_child(
            [self.cgi], self.connection, self.now.session, self.make_ending, os.environ | request
        )
        _, _, outcome = output.partition(b"\n\n")
        if code != 0 or outcome.decode() not in (steadfast_pg.COMMITTED, steadfast_pg.ABORTED):
            raise psycopg2.OperationalError(f"the script {self.cgi} has failed (exit code {code})")
        return outcome.decode()

    def make_ending(self, txn_id):
        """The state before the end of the first item's transaction."""
        self.now.ending = txn_id
        return self.now.to_bytes()


def serve(connection, **options):
    session = Session(connection, **options)
    try:
        session.serve()
    finally:
        session.close()


def create_tables(dsn):
    db = psycopg2.connect(dsn)
    with db, db.cursor() as cursor:
        cursor.execute(SCHEMA)
    db.close()


def main():
    parser = argparse.ArgumentParser(description="Executes series of transactions in PostgreSQL, over HTTP/1.1.")
    parser.add_argument("--create", action="store_true", help="create the tables if they do not exist")
    parser.add_argument("--wrong-order", action="store_true", help="commit before the export, which duplicates transactions (for tests)")
    parser.add_argument("--cgi", metavar="SCRIPT", help="execute each transaction in a child process, a CGI script")
    parser.add_argument("dsn", metavar="DSN")
    parser.add_argument("addresses", metavar="ADDRESS:PORT", nargs="+")
    options = parser.parse_args()
    if options.create:
        create_tables(options.dsn)
    commit = commit_in_wrong_order if options.wrong_order else steadfast_pg.commit_exactly_once
    failures = (steadfast_pg.OutcomeUnknown, psycopg2.Error, ValueError)
    tcp_server.run(options.addresses, functools.partial(serve, dsn=options.dsn, commit=commit, cgi=options.cgi), failures)


if __name__ == "__main__":
    main()
