"""Transactions in PostgreSQL that are executed exactly once, for servers with restart policy `snapshot`.

A front-end is a server that executes its clients' transactions in a database. If a front-end fails, one on the other node continues its
connections: the successor. These names, and those of the first three functions, are from Sultan et al., "Migratory TCP", section 6. The
paper changes PostgreSQL. Here PostgreSQL is unchanged.

A front-end exports its state inside each transaction, as the last step before the commit (6.3.2). The state says that the transaction is
ending, and has the transaction's id. So a successor starts from one of two snapshots:

* An earlier one. Then the transaction was not committed, because a commit follows only when its snapshot is kept. reconnect_db aborts the
  transaction, and the successor executes it again.
* The one of the ending transaction. Then the transaction may have been committed. The successor asks for the outcome and reports it. It
  does not execute the transaction again, even if the outcome is an abort: the first front-end may have reported the abort already.

The other order duplicates transactions. If a front-end commits first and fails before its export, the successor starts from an earlier
snapshot. It executes a transaction again that has been committed.

    db = steadfast_pg.reconnect_db(dsn, state.session)
    if state.ending is not None:  # in an imported state: the id of the ending transaction
        report(steadfast_pg.outcome(db, state.ending))
    ...
    cursor.execute("UPDATE ...")
    report(steadfast_pg.commit_exactly_once(db, connection, make_state))

A long transaction need not be executed again from its beginning. steadfast_pg_sessions.py keeps its back-end while the front-ends change,
and savepoint() exports a state in its middle, from which a successor goes on (6.3.1; resume_db).

A transaction may run in a child process of the front-end, for example a CGI script. The child executes it with child_db(), and ends it with
parent() in the place of the connection. The front-end exports the state for it (run_child).

The database must be reached without a pooler, because a pooler's back-ends belong to no session. Its setting synchronous_commit must not be
`off`, because then PostgreSQL may forget a committed transaction in a crash. The module needs psycopg2 and PostgreSQL 13 or later.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import tempfile
import threading
import time

import psycopg2
import psycopg2.errors
import psycopg2.extensions

import steadfast

__all__ = [
    "COMMITTED",
    "ABORTED",
    "OutcomeUnknown",
    "new_session",
    "reconnect_db",
    "get_txn_id",
    "outcome",
    "commit_exactly_once",
    "abort_exactly_once",
    "savepoint",
    "resume_db",
    "run_child",
    "child_db",
    "parent",
    "Parent",
    "ParentGone",
]

COMMITTED = "committed"
ABORTED = "aborted"

# Number of exports that may time out before a transaction is rolled back. Each takes 30 s, and the transaction keeps its locks meanwhile.
EXPORT_TRIES = 3
# Seconds between two checks whether the back-ends have ended.
_CHECK_EVERY = 0.005


class OutcomeUnknown(Exception):
    """The database cannot tell a transaction's outcome."""


class ParentGone(Exception):
    """The front-end of this child process has failed, or its client has moved. The transaction is rolled back."""


class Database(psycopg2.extensions.connection):
    """A connection to the database, made by reconnect_db."""

    log_flusher = None


def new_session():
    """A name for the session of a new client connection. Every snapshot of the connection must have it."""
    return secrets.token_hex(16)


def reconnect_db(dsn, session, timeout=10):
    """Connects to the database for `session`, and ends every other back-end of this session. Returns a Database.

    This aborts the unfinished transaction of an earlier front-end at once (6.4.1). Otherwise the transaction would hold its locks until the
    database notices that the front-end has failed. When the call returns, the outcome of each earlier transaction of the session is final.

    A front-end that has lost its connection to the database exports its state before this call. If its client has moved, the export raises
    Emigrated. Without the export, the front-end would end its successor's back-end.

    Raises psycopg2.OperationalError if the database cannot be reached, or if an earlier back-end has not ended after `timeout` seconds.
    """
    return _connect(dsn, session, timeout, lambda db: _end_all_others(db, session, timeout))


def _connect(dsn, session, timeout, prepare):
    """Connects to the database, and calls `prepare` with the connection before its first transaction."""
    db = psycopg2.connect(dsn, application_name=session, connect_timeout=timeout, connection_factory=Database)
    try:
        db.autocommit = True
        prepare(db)
        db.autocommit = False
        db.log_flusher = _log_flushers.setdefault(dsn, _LogFlusher(dsn))
    except BaseException:
        db.close()
        raise
    return db


def _end_all_others(db, session, timeout):
    deadline = time.monotonic() + timeout
    while _end_other_backends(db, session) > 0:
        if time.monotonic() >= deadline:
            raise psycopg2.OperationalError(f"an earlier back-end of the session has not ended within {timeout} s")
        time.sleep(_CHECK_EVERY)


def _end_other_backends(db, session):
    """Tells the session's other back-ends to end. Returns their number. The view has a back-end until its transaction has ended."""
    with db.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()", [session]
        )
        return cursor.rowcount


def resume_db(dsn, session, savepoint=None, timeout=10):
    """Connects to the database for `session`, and goes on with its transaction from `savepoint`. `dsn` leads to steadfast_pg_sessions.py.

    Returns a Database, and whether the transaction goes on. If it does not, it has ended or is aborted, and the call has done what
    reconnect_db does: the transaction's keeper has failed, nobody came in time, or `savepoint` is None. So a state that names a savepoint must
    also say how the transaction begins.
    """
    goes_on = False

    def prepare(db):
        nonlocal goes_on
        if db.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_IDLE:
            goes_on = savepoint is not None and _roll_back_to(db, savepoint)
            if not goes_on:
                _execute(db, "ROLLBACK")
        if not goes_on:
            _end_all_others(db, session, timeout)

    db = _connect(dsn, session, timeout, prepare)
    if goes_on:
        # psycopg2 does not know of the transaction. It sends BEGIN, about which the database only warns.
        _execute(db, "SELECT 1")
    return db, goes_on


def _roll_back_to(db, savepoint):
    """Returns whether the transaction has this savepoint."""
    try:
        _execute(db, f"ROLLBACK TO SAVEPOINT {psycopg2.extensions.quote_ident(savepoint, db)}")
    except psycopg2.errors.InvalidSavepointSpecification:
        return False
    return True


def savepoint(db, connection, make_state):
    """Sets a savepoint in the current transaction, and then exports the state of `connection`. Returns the savepoint's name.

    `make_state(name)` returns the state: the transaction goes on from the savepoint `name`. In the other order, a successor could start from
    a savepoint that is not set. If the state cannot be exported, the call rolls the transaction back and raises the error.
    """
    name = f"steadfast_{secrets.token_hex(8)}"
    try:
        _execute(db, f"SAVEPOINT {name}")
        _export(connection, make_state(name))
    except BaseException:
        with contextlib.suppress(psycopg2.Error):
            db.rollback()
        raise
    return name


def run_child(command, connection, session, make_state, environment):
    """Runs `command`, a child process that executes one transaction of `session`. Returns its exit code, and what it has printed.

    When the child is about to end its transaction, the call exports the state of `connection`: make_state(txn_id), as in commit_exactly_once.
    The child commits only afterwards. If the export fails, the child is killed, its transaction is rolled back, and the error is raised.

    If the child fails, the front-end calls reconnect_db. If make_state has been called, it then asks for the outcome. Otherwise the
    transaction is aborted, and the front-end runs the child again.
    """
    ours, the_childs = socket.socketpair()
    with ours, the_childs, tempfile.TemporaryFile() as output:
        names = {_PARENT: str(the_childs.fileno()), _SESSION: session}
        child = subprocess.Popen(
            command, env=environment | names, stdin=subprocess.DEVNULL, stdout=output, pass_fds=[the_childs.fileno()]
        )
        the_childs.close()
        try:
            with ours.makefile("rb") as requests:
                for txn_id in requests:
                    _export(connection, make_state(txn_id.decode().strip()))
                    with contextlib.suppress(OSError):  # the child has failed meanwhile
                        ours.sendall(_EXPORTED)
            code = child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        output.seek(0)
        return code, output.read()


def child_db(dsn):
    """Connects a child process of run_child to the database. Returns a Database."""
    return _connect(dsn, os.environ[_SESSION], 10, lambda db: None)


def parent():
    """The front-end of this child process, for commit_exactly_once and abort_exactly_once in the place of a connection.

    `make_state` of these calls returns the transaction's id in bytes: str.encode.
    """
    return Parent(socket.socket(fileno=int(os.environ[_PARENT])))


class Parent:
    """See parent()."""

    def __init__(self, channel):
        self.channel = channel

    def export(self, txn_id):
        """Asks the front-end for the export, and waits for it."""
        try:
            self.channel.sendall(txn_id + b"\n")
            is_exported = self.channel.recv(1) == _EXPORTED
        except OSError as error:
            raise ParentGone from error
        if not is_exported:
            raise ParentGone


# Names of environment variables: a socket to the front-end, and its session.
_PARENT = "STEADFAST_PG_PARENT"
_SESSION = "STEADFAST_PG_SESSION"
# The front-end's answer to its child.
_EXPORTED = b"\1"


def get_txn_id(db):
    """The id of the current transaction. Begins a transaction if there is none.

    No other transaction gets this id, not even after a crash of the database server. A server that crashes forgets the ids that are not in
    its log on disk, and assigns them again. Then outcome() would return the outcome of another transaction. So this call flushes the log.
    """
    txn_id = _query(db, "SELECT pg_current_xact_id()::text")
    db.log_flusher.flush()
    _query(db, "SELECT 1")  # fails if the server has crashed before the flush
    return txn_id


def outcome(db, txn_id):
    """The outcome of a transaction of this session that has ended: COMMITTED or ABORTED. To be called between two transactions.

    The outcome is final if the transaction has ended on `db`, or if reconnect_db has made `db` since.
    """
    try:
        status = _query(db, "SELECT pg_xact_status(%s)", txn_id)
    finally:
        db.rollback()
    if status not in (COMMITTED, ABORTED):
        raise OutcomeUnknown(f"transaction {txn_id} is {status or 'too old'}")
    return status


def commit_exactly_once(db, connection, make_state):
    """Exports the state of `connection`, and then commits the current transaction. Returns its outcome: COMMITTED or ABORTED.

    `make_state(txn_id)` returns the state: the transaction with this id is ending, and its outcome is not reported yet. If no backup
    protects the connection, the transaction is committed all the same.

    If the state cannot be exported, the call rolls the transaction back and raises the error. The server must then close `connection`.

    After a psycopg2.Error, the connection to the database is lost, and the server calls reconnect_db. If make_state has been called, the
    server then asks for the outcome. Otherwise the transaction is aborted, and the server executes it again.
    """
    if db.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
        return abort_exactly_once(db, connection, make_state)
    return _export_and_end(db, connection, make_state, COMMITTED)


def abort_exactly_once(db, connection, make_state):
    """Aborts the current transaction, with an export like that of commit_exactly_once. So the abort is the outcome after a takeover too.

    PostgreSQL does not tell the id of a failed transaction. So an empty transaction takes its place in the state, and is aborted too.
    """
    db.rollback()
    return _export_and_end(db, connection, make_state, ABORTED)


def _export_and_end(db, connection, make_state, end):
    try:
        txn_id = get_txn_id(db)
        _export(connection, make_state(txn_id))
    except BaseException:
        with contextlib.suppress(psycopg2.Error):
            db.rollback()
        raise
    try:
        db.commit() if end == COMMITTED else db.rollback()
    except psycopg2.Error:
        # A deferred constraint has failed, for example. If the connection is lost, the rollback raises an error too.
        db.rollback()
        return outcome(db, txn_id)
    return end


def _export(connection, state):
    """Exports `state` and waits. Returns if a backup keeps it, or if no backup protects the connection."""
    if isinstance(connection, Parent):
        return connection.export(state)
    for tries_left in reversed(range(EXPORT_TRIES)):
        try:
            steadfast.export_state(connection, state, wait=True)
            return
        except steadfast.NotProtected:
            return
        except steadfast.TimedOut:
            if not tries_left:
                raise


def _execute(db, query):
    with db.cursor() as cursor:
        cursor.execute(query)


def _query(db, query, *values):
    """The only value of the only row."""
    with db.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchone()[0]


class _LogFlusher:
    """Flushes the log of the database server, by the commit of a transaction that only writes to the log.

    All sessions of this process share its connection. One flush serves all threads that wait for it. From PostgreSQL 17 on, an argument of
    pg_logical_emit_message flushes the log inside a transaction, which would do without this class.
    """

    def __init__(self, dsn):
        self.dsn = dsn
        self.db = None
        self.lock = threading.Lock()
        # Number of the last flush that has begun, and of the last flush that has succeeded.
        self.begun = 0
        self.done = 0

    def flush(self):
        begun = self.begun
        with self.lock:
            if self.done > begun:
                return  # a flush that began after this call has succeeded
            self.begun += 1
            try:
                self.write_and_commit()
            except psycopg2.Error:
                # The server may have been restarted since the last flush.
                self.db = None
                self.write_and_commit()
            self.done = self.begun

    def write_and_commit(self):
        if self.db is None:
            self.db = psycopg2.connect(self.dsn)
            self.db.autocommit = True
        with self.db.cursor() as cursor:
            cursor.execute("SELECT pg_logical_emit_message(true, 'steadfast', '')")


# The flusher of each DSN.
_log_flushers = {}
