"""Transactions in PostgreSQL that are executed exactly once, for servers with restart policy `snapshot`.

A front-end is a server that executes its clients' transactions in a database. If it fails, a front-end on the other node goes on: the
successor. The names are those of Sultan et al., "Migratory TCP", section 6, which changes PostgreSQL. Here PostgreSQL is unchanged.

A front-end exports its state inside each transaction, as the last step before the commit (6.3.2). The state says that this transaction is
ending, and has the transaction's id. So the successor's snapshot is one of two:

* An earlier one. The transaction was not committed, because a commit follows only after its snapshot is kept. reconnect_db aborts the
  transaction. The successor executes it again.
* That of the ending transaction. The transaction may have been committed or not. The successor asks for its outcome, and reports it. It does
  not execute the transaction again, not even an aborted one: the first front-end may have reported the outcome already.

The other order duplicates transactions. If a front-end commits first and fails before its export, the successor has an earlier snapshot,
and executes a transaction again that has been committed.

    db = steadfast_pg.reconnect_db(dsn, state.session)
    if state.ending is not None:  # an imported state
        report(state.transaction, steadfast_pg.outcome(db, state.ending))
    ...
    cursor.execute("UPDATE ...")
    report(state.transaction, steadfast_pg.commit_exactly_once(db, connection, make_state))

The connections must be direct ones: a pooler hides to which client a back-end belongs. The setting synchronous_commit must not be off, because
then PostgreSQL forgets committed transactions if it crashes. Needs psycopg2 and PostgreSQL 13.
"""

import contextlib
import secrets
import threading
import time

import psycopg2
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
]

COMMITTED = "committed"
ABORTED = "aborted"

# Number of waiting exports before a transaction is rolled back. The agent ends each one after 30 s. The transaction keeps its locks meanwhile.
EXPORT_TRIES = 3
# Seconds between two looks whether a back-end has ended.
_LOOK_EVERY = 0.005


class OutcomeUnknown(Exception):
    """The database cannot tell a transaction's outcome."""


class Database(psycopg2.extensions.connection):
    """A connection to the database, made by reconnect_db."""

    log_flusher = None


def new_session():
    """A name for the session of a new client connection. It belongs into every snapshot."""
    return secrets.token_hex(16)


def reconnect_db(dsn, session, timeout=10):
    """Connects to the database for `session`, and ends every other back-end of this session. Returns a Database.

    An unfinished transaction of an earlier front-end is aborted thereby (6.4.1). It would hold its locks for as long as the database takes the
    failed front-end for alive. When the call returns, no earlier transaction of this session can change its outcome any more.

    Raises psycopg2.OperationalError if an earlier back-end is still there after `timeout` seconds, or if there is no connection.
    """
    deadline = time.monotonic() + timeout
    db = psycopg2.connect(dsn, application_name=session, connect_timeout=timeout, connection_factory=Database)
    try:
        db.autocommit = True
        while _end_other_backends(db, session) > 0:
            if time.monotonic() >= deadline:
                raise psycopg2.OperationalError(f"an earlier back-end of the session has not ended within {timeout} s")
            time.sleep(_LOOK_EVERY)
        db.autocommit = False
        db.log_flusher = _log_flushers.setdefault(dsn, _LogFlusher(dsn))
    except BaseException:
        db.close()
        raise
    return db


def _end_other_backends(db, session):
    """Tells the session's other back-ends to end. Returns their number. A back-end stays in the view until its transaction has ended."""
    with db.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()", [session]
        )
        return cursor.rowcount


def get_txn_id(db):
    """The id of the current transaction. Begins a transaction if there is none.

    No other transaction ever has this id, not even after a crash of the database server. A server that crashes forgets the ids that are not
    in its log on disk, and assigns them again. Another transaction with the same id could commit, and outcome() would return its outcome. So
    the log is flushed here. The second query fails if the server has crashed meanwhile, before the flush.
    """
    txn_id = _query(db, "SELECT pg_current_xact_id()::text")
    db.log_flusher.flush()
    _query(db, "SELECT 1")
    return txn_id


def outcome(db, txn_id):
    """The outcome of a transaction of this session that has ended: COMMITTED or ABORTED. To be called between two transactions.

    The outcome is final if reconnect_db was called after the transaction's connection was lost.
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

    `make_state(txn_id)` returns the state: the transaction with this id is ending, and its outcome is not reported yet. If no backup protects
    the connection, the transaction is committed all the same.

    If the state cannot be exported, the transaction is rolled back and the error is raised. The connection must be closed then: after Emigrated,
    the successor executes the transaction. After a psycopg2.Error, the connection to the database is lost. If make_state has been called, the
    outcome is known only to outcome(), after reconnect_db. Otherwise the transaction is aborted, and can be executed again.
    """
    if db.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
        return abort_exactly_once(db, connection, make_state)
    return _export_and_end(db, connection, make_state, COMMITTED)


def abort_exactly_once(db, connection, make_state):
    """Ends the current transaction like commit_exactly_once, but aborts it. The outcome is reported once, also after a takeover.

    A failed transaction cannot tell its id. So it is rolled back, and an empty one is exported in its place, which is aborted too.
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
        # A deferred constraint, for example. If the connection is lost, the rollback fails too.
        db.rollback()
        return outcome(db, txn_id)
    return end


def _export(connection, state):
    """Exports `state` and waits. Returns if a backup keeps it, or if no backup protects the connection."""
    for tries_left in reversed(range(EXPORT_TRIES)):
        try:
            steadfast.export_state(connection, state, wait=True)
            return
        except steadfast.NotProtected:
            return
        except steadfast.TimedOut:
            if not tries_left:
                raise


def _query(db, query, *values):
    """The only value of the only row."""
    with db.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchone()[0]


class _LogFlusher:
    """Flushes the log of the database server. The threads of this process share its connection, and one flush serves all threads that wait.

    It commits a transaction that writes to the log and changes nothing else. From PostgreSQL 17 on, pg_logical_emit_message has an option for
    a flush inside a transaction.
    """

    def __init__(self, dsn):
        self.dsn = dsn
        self.db = None
        self.lock = threading.Lock()
        # Number of the last flush that has begun, and of the last one that has succeeded.
        self.begun = 0
        self.done = 0

    def flush(self):
        begun = self.begun
        with self.lock:
            if self.done > begun:
                return  # that flush began after this call
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


# Per DSN.
_log_flushers = {}
