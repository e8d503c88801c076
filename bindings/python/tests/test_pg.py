"""The front-end for PostgreSQL: each transaction is executed and answered once, whatever fails, and whenever.

A failure is injected after each step of a front-end. A step is a query, an export, an output or another effect outside of the front-end.
"""

import contextlib
import functools
import inspect
import itertools
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from agent import EXPORT, IMPORT, ROOT, Agent, answering
from servers import offsets

import steadfast

EXAMPLES = ROOT / "examples"
PROGRAMS = max(pathlib.Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda path: int(path.parent.name), default=None)
MISSING = None
try:
    import psycopg2
    import psycopg2.extensions

    import steadfast_pg
except ImportError:
    MISSING = "psycopg2 is missing; on Debian: apt-get install python3-psycopg2"
if PROGRAMS is None:
    MISSING = "PostgreSQL's programs are missing; on Debian: apt-get install postgresql"

EMIGRATED, CLOSED = (1,), (3,)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
# An amount that PostgreSQL refuses.
TOO_LARGE = 10**20


# A CGI script that is killed at most once: after a query, after the export of its front-end, or after its commit.
KILLED_CHILD = """#!%s
import os, signal, sys
sys.path.insert(0, {examples!r})
import pg_cgi, steadfast_pg

def after(owner, function, moment):
    call = getattr(owner, function)
    def call_and_die(*arguments, **options):
        result = call(*arguments, **options)
        if moment == {moment!r} and not os.path.exists({once!r}):
            open({once!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, function, call_and_die)

after(steadfast_pg, "get_txn_id", "execute")
after(steadfast_pg.Parent, "export", "export")
after(steadfast_pg.Database, "commit", "commit")
pg_cgi.main()
""" % sys.executable


def series(client, *lines):
    """A request."""
    body = "".join(f"{item} {amount}\n" for item, amount in lines)
    return f"POST /series HTTP/1.1\r\nClient: {client}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def answer(*outcomes):
    """The answer to a series, with the outcome of each item."""
    lines = [b"%s %s\n" % each for each in outcomes]
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines) + b"0\r\n\r\n"


class PostgreSQL:
    """A database server in a directory of its own. It listens on a Unix socket."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory()
        # PostgreSQL does not run as root.
        self.user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.getuid() == 0 else []
        if self.user:
            subprocess.run(["chown", "nobody:nogroup", self.directory.name], check=True)
        self.data = os.path.join(self.directory.name, "data")
        self.dsn = f"host={self.directory.name} user=test dbname=postgres"
        self.run("initdb", "--no-sync", "--auth=trust", "--username=test", "--encoding=UTF8", "--locale=C").communicate()
        self.start()

    def run(self, program, *arguments):
        command = [*self.user, PROGRAMS / program, "-D", self.data, *arguments]
        return subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start(self):
        settings = ["listen_addresses=", f"unix_socket_directories={self.directory.name}", "fsync=off", "dynamic_shared_memory_type=mmap"]
        self.server = self.run("postgres", *itertools.chain.from_iterable(("-c", setting) for setting in settings))
        while True:
            with contextlib.suppress(psycopg2.OperationalError):
                return psycopg2.connect(self.dsn).close()
            if self.server.poll() is not None:
                raise RuntimeError(f"the database server ends with {self.server.returncode}")
            time.sleep(0.01)

    def crash(self):
        """Ends the server without a checkpoint. The log that is not flushed is lost."""
        self.server.send_signal(signal.SIGQUIT)
        self.server.wait()

    def close(self):
        self.crash()
        self.directory.cleanup()

    def query(self, query):
        """Executes a query in a transaction of its own. Returns its rows, if it has any."""
        db = psycopg2.connect(self.dsn)
        with db, db.cursor() as cursor:
            cursor.execute(query)
            rows = cursor.fetchall() if cursor.description else None
        db.close()
        return rows


@functools.cache
def shared_postgres():
    postgres = PostgreSQL()
    unittest.addModuleCleanup(postgres.close)
    return postgres


class Backup:
    """The agent with its backup: keeps the last snapshot of each client address."""

    def __init__(self):
        # Per client address: the state, and the bytes that the front-end had read and written.
        self.snapshots = {}
        # Addresses of clients that another front-end serves.
        self.emigrated = set()
        # Whether snapshots arrive for which nobody waits.
        self.keeps_all = True
        self.agent = Agent(answering(self.handle))

    def handle(self, request):
        try:
            client = request.connection.getpeername()
        except OSError:
            return CLOSED
        if client in self.emigrated:
            return EMIGRATED
        if request.operation == IMPORT:
            state, *_ = self.snapshots.get(client, (None,))
            return (0, 0) if state is None else (0, 1, len(state), state)
        if self.keeps_all or request.operation != EXPORT:
            self.snapshots[client] = (request.state, *offsets(request.connection))
        return 0, 1


class Client:
    """A connection to a front-end, from a new address."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.settimeout(20)
        self.socket.bind(("127.0.0.1", 0))
        self.address = self.socket.getsockname()
        self.output = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, address, request):
        """Sends all input."""
        self.socket.connect(address)
        self.socket.sendall(request)
        self.socket.shutdown(socket.SHUT_WR)

    def read(self):
        """Reads what has arrived. Returns whether the connection goes on."""
        try:
            received = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self.output += received
        return bool(received)

    def read_all(self):
        while self.read():
            pass
        return self.output


def run_front_end():
    """A program: a front-end that pauses after a step. It prints the step's name, and goes on when it reads a line.

    Its arguments are the number of the step, and the front-end's arguments.
    """
    import itertools
    import json
    import sys

    import pg_front_end
    import psycopg2.extensions
    import steadfast
    import steadfast_pg

    paused_step = int(sys.argv.pop(1))
    steps = itertools.count(1)

    def end_step(name):
        if next(steps) == paused_step:
            print(name, flush=True)
            sys.stdin.readline()

    def count(owner, function, name=None):
        """Makes a step of each call. `name` tells the step's name from the call's arguments."""
        call = getattr(owner, function)

        def call_and_end_step(*arguments, **options):
            result = call(*arguments, **options)
            end_step(name(*arguments) if name else function)
            return result

        setattr(owner, function, call_and_end_step)

    class Cursor(psycopg2.extensions.cursor):
        def execute(self, query, *values):
            super().execute(query, *values)
            end_step(query)

    def name_export(connection, state, *wait):
        return "export an ending" if json.loads(state)["ending"] else "export"

    make_cursor = steadfast_pg.Database.cursor
    steadfast_pg.Database.cursor = lambda db: make_cursor(db, cursor_factory=Cursor)
    count(steadfast_pg.Database, "commit")
    count(steadfast_pg.Database, "rollback")
    count(steadfast_pg._LogFlusher, "flush")
    count(steadfast_pg, "run_child", lambda *arguments: "run a child")
    count(steadfast, "import_state")
    count(steadfast, "export_state", name_export)
    count(pg_front_end.Session, "read_more")
    count(pg_front_end.Session, "send")
    pg_front_end.main()


class FrontEnd:
    """A process that runs run_front_end. Step 0: it never pauses."""

    def __init__(self, step, agent, *arguments):
        environment = os.environ | {"STEADFAST_SNAPSHOTS": agent, "PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
        program = f"{inspect.getsource(run_front_end)}\nrun_front_end()"
        command = [sys.executable, "-c", program, str(step), *arguments, "127.0.0.1:0"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        host, _, port = self.process.stdout.readline().removeprefix("ready: ").rpartition(":")
        self.address = (host, int(port))

    def pause(self, client):
        """Waits until the front-end pauses, or ends the connection. Returns the name of the last step, or None."""
        while True:
            ready, _, _ = select.select([self.process.stdout, client.socket], [], [], 20)
            if not ready:
                raise TimeoutError("the front-end neither pauses nor ends the connection")
            if client.socket in ready and not client.read():
                return None
            if ready == [self.process.stdout]:
                return self.process.stdout.readline().strip()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        """Returns what the front-end has printed."""
        self.process.kill()
        return self.process.communicate()[1]


@unittest.skipIf(MISSING, MISSING)
class PgTest(unittest.TestCase):
    def setUp(self):
        self.postgres = shared_postgres()
        self.backup = Backup()
        self.addCleanup(self.backup.agent.close)
        self.successor = self.start()

    def start(self, step=0, *options):
        front_end = FrontEnd(step, self.backup.agent.path, "--create", *options, self.postgres.dsn)
        self.addCleanup(front_end.kill)
        return front_end

    def converse(self, request):
        with Client() as client:
            client.send(self.successor.address, request)
            return client.read_all()

    def at_each_step(self, request, fail, *options):
        """Starts a front-end for each step, and calls `fail(front_end, client, step)` when it pauses there. Returns the steps' names."""
        steps = []
        while True:
            self.postgres.query("TRUNCATE ledger, accounts")
            # A new client may have the address of an earlier one.
            self.backup.snapshots.clear()
            self.backup.emigrated.clear()
            front_end = self.start(len(steps) + 1, *options)
            with Client() as client:
                client.send(front_end.address, request)
                step = front_end.pause(client)
                if step is not None:
                    steps.append(step)
                    with self.subTest(f"step {len(steps)}: {step}"):
                        fail(front_end, client, step)
            self.assertNotIn("Traceback", front_end.kill())
            if step is None:
                return steps

    def take_over(self, client, request):
        """Lets the successor go on. Returns the whole output that a client of Steadfast would have received."""
        state, read, written = self.backup.snapshots.get(client.address, (None, 0, 0))
        self.backup.emigrated.add(client.address)
        with Client() as continued:
            if state is not None:
                self.backup.snapshots[continued.address] = (state,)
            continued.send(self.successor.address, request[read:])
            output = continued.read_all()
        repeated = client.output[written:]
        self.assertEqual(output[: len(repeated)], repeated)
        return client.output[:written] + output

    def outcomes(self, output, items, next_answer=b""):
        """The outcome of each item. The output must be exactly the answer and the next one, and the ledger must agree with it."""
        outcomes = re.findall(rb"(\S+) (committed|aborted)\n", output)
        self.assertEqual(output, answer(*outcomes) + next_answer)
        self.assertEqual([item.decode() for item, _ in outcomes], items)
        ledger = [item for (item,) in self.postgres.query("SELECT item FROM ledger")]
        self.assertEqual(ledger, [item.decode() for item, outcome in outcomes if outcome == b"committed"])
        self.assertEqual(self.postgres.query("SELECT sum(amount) FROM ledger"), self.postgres.query("SELECT sum(balance) FROM accounts"))
        return [outcome.decode() for _, outcome in outcomes]


class StepsTest(PgTest):
    """The third transaction fails, so its outcome is always "aborted"."""

    ITEMS = ["first", "second", "third"]
    # The second request is so long that the front-end reads only a part of it together with the first one.
    INPUT = series("client", ("first", 1), ("second", -2), ("third", TOO_LARGE))
    INPUT += b"GET / HTTP/1.1\r\nPadding: %s\r\n\r\n" % (b"a" * 8100)

    def check(self, output, step):
        """Returns the number of transactions that the takeover has aborted: at most the one that was exported and not yet committed."""
        *outcomes, last = self.outcomes(output, self.ITEMS, NO_CONTENT)
        self.assertEqual(last, "aborted")
        aborted = outcomes.count("aborted")
        self.assertLessEqual(aborted, int(step == "export an ending"))
        return aborted

    def crash_at_each_step(self, *options):
        """Kills a front-end after each step. Returns the steps' names."""
        aborted = []

        def fail(front_end, client, step):
            front_end.kill()
            client.read_all()
            aborted.append(self.check(self.take_over(client, self.INPUT), step))

        steps = self.at_each_step(self.INPUT, fail, *options)
        self.assertEqual(sum(aborted), 2)
        return steps

    def suspect_at_each_step(self, *options):
        """Lets a successor go on after each step, while the front-end and its connection to the database live."""
        # Snapshots for which nobody waits are lost.
        self.backup.keeps_all = False

        def fail(front_end, client, step):
            output = self.take_over(client, self.INPUT)
            self.check(output, step)
            front_end.go_on()
            client.read_all()
            self.check(output, step)

        self.at_each_step(self.INPUT, fail, *options)

    def test_a_crash_after_any_step(self):
        steps = self.crash_at_each_step()
        # The outputs are a head, three outcomes, the last chunk and the answer to GET.
        self.assertEqual([steps.count(step) for step in ("export", "export an ending", "commit", "send")], [3, 3, 2, 6])

    def test_a_suspicion_after_any_step_while_the_front_end_goes_on(self):
        self.suspect_at_each_step()

    def test_a_crash_of_the_database_after_any_step(self):
        request = series("client", ("item", 1))

        def fail(front_end, client, step):
            self.postgres.crash()
            self.postgres.start()
            # Other transactions get the ids that the server has forgotten.
            for _ in range(10):
                self.postgres.query("SELECT pg_current_xact_id()")
            front_end.go_on()
            client.read_all()
            # A front-end that has an id notices the crash only in the commit.
            is_ending = step in ("SELECT 1", "export an ending")
            self.assertEqual(self.outcomes(client.output, ["item"]), ["aborted" if is_ending else "committed"])

        self.at_each_step(request, fail)

    def write_script(self, moment):
        """Writes a CGI script that is killed once at `moment`. Returns its path."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        script = pathlib.Path(directory.name) / "script"
        script.write_text(KILLED_CHILD.format(examples=str(EXAMPLES), moment=moment, once=f"{directory.name}/once"))
        script.chmod(0o755)
        return script

    def test_a_crash_after_any_step_around_a_child_process(self):
        steps = self.crash_at_each_step("--cgi", self.write_script("never"))
        self.assertEqual([steps.count(step) for step in ("export an ending", "run a child", "send")], [3, 3, 6])

    def test_a_suspicion_after_any_step_around_a_child_process(self):
        self.suspect_at_each_step("--cgi", self.write_script("never"))

    def test_a_child_process_that_is_killed(self):
        request = series("client", ("item", 1))
        expected = {"execute": "committed", "export": "aborted", "commit": "committed"}
        for moment, outcome in expected.items():
            with self.subTest(moment):
                self.postgres.query("TRUNCATE ledger, accounts")
                front_end = self.start(0, "--cgi", self.write_script(moment))
                with Client() as client:
                    client.send(front_end.address, request)
                    self.assertEqual(self.outcomes(client.read_all(), ["item"]), [outcome])
                self.assertNotIn("Traceback", front_end.kill())

    def test_the_wrong_order_duplicates_a_transaction(self):
        request = series("client", ("item", 1))
        duplicated = []

        def fail(front_end, client, step):
            front_end.kill()
            client.read_all()
            self.take_over(client, request)
            if self.postgres.query("SELECT count(*) FROM ledger") != [(1,)]:
                duplicated.append(step)

        self.at_each_step(request, fail, "--wrong-order")
        self.assertEqual(duplicated, ["commit"])


class FrontEndTest(PgTest):
    def refusal(self, status):
        return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()

    def test_it_answers_as_http_asks(self):
        bad = self.refusal("400 Bad Request")
        request = series("c", ("i", 1))
        committed = answer((b"i", b"committed"))
        closing = b"\r\nConnection: close\r\n"
        conversations = [
            (b"", b""),
            (request[:-1], b""),
            (b"GET / HTTP/1.1\r\n\r\n", NO_CONTENT),
            (b"GET /series HTTP/1.1\r\n\r\n", self.refusal("404 Not Found")),
            (request + b"GET / HTTP/1.1\r\n\r\n" + request, committed + NO_CONTENT + committed),
            (request.replace(b"\r\n", closing, 1) + request, committed.replace(b"\r\n\r\n", closing + b"\r\n", 1)),
            (series("c", ("i", TOO_LARGE)), answer((b"i", b"aborted"))),
            (series("c"), bad),
            (series("c d", ("i", 1)), bad),
            (series("c", ("i", 1.5)), bad),
            (series("c", ("i i", 1)), bad),
            (request.replace(b"Content-Length", b"Other"), bad),
            (request.replace(b"1.1", b"1.0"), bad),
            (request.replace(b"Client: c\r\n", b"Client: c\r\n" * 2), bad),
            (request.replace(b"Length: ", b"Length: -"), bad),
            (request.replace(b"Content-Length", b"Transfer-Encoding"), self.refusal("411 Length Required")),
            (series("c", ("i" * 65536, 1)), self.refusal("413 Content Too Large")),
            (b"GET / HTTP/1.1\r\nA: " + b"a" * 8192, bad),
        ]
        for request, expected in conversations:
            with self.subTest(request[:100]):
                self.assertEqual(self.converse(request), expected)

    def test_the_sample_client_and_the_check(self):
        self.postgres.query("TRUNCATE ledger, accounts")
        host, port = self.successor.address

        def run(program, *arguments):
            command = [sys.executable, EXAMPLES / program, *map(str, arguments)]
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            return result.returncode, json.loads(result.stdout)

        code, client = run("pg_client.py", host, port, "c", "--items", 7, "--series-size", 3)
        items = [f"c-{number}" for number in range(7)]
        self.assertEqual((code, client), (0, {"name": "c", "committed": items, "aborted": [], "error": None}))
        self.successor.kill()
        code, failed = run("pg_client.py", host, port, "d")
        self.assertEqual(code, 1)
        self.assertIn("ConnectionRefusedError", failed["error"])

        with tempfile.NamedTemporaryFile("w") as file:
            # The client was told that c-6 is aborted, and was not told the outcome of c-5.
            print(json.dumps(failed), json.dumps(client | {"committed": items[:5], "aborted": items[6:]}), sep="\n", file=file, flush=True)
            counts = {"duplicates": 0, "lost": 0, "contradicted": 1, "unanswered_in_ledger": 1, "wrong_balances": 0}
            counts |= {"committed": 5, "aborted": 1}
            self.assertEqual(run("pg_check.py", self.postgres.dsn, file.name), (1, counts))
            self.postgres.query("DELETE FROM ledger WHERE item >= 'c-4'")
            self.postgres.query("INSERT INTO ledger SELECT * FROM ledger WHERE item = 'c-1'")
            counts |= {"duplicates": 1, "lost": 1, "contradicted": 0, "unanswered_in_ledger": 0, "wrong_balances": 1}
            self.assertEqual(run("pg_check.py", self.postgres.dsn, file.name), (1, counts))


@unittest.skipIf(MISSING, MISSING)
class LibraryTest(unittest.TestCase):
    def setUp(self):
        self.postgres = shared_postgres()
        self.postgres.query("DROP TABLE IF EXISTS items")
        self.postgres.query("CREATE TABLE items (item text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        self.session = steadfast_pg.new_session()
        self.db = self.reconnect()
        self.states = []

    def reconnect(self):
        db = steadfast_pg.reconnect_db(self.postgres.dsn, self.session)
        self.addCleanup(db.close)
        return db

    def insert(self, item):
        with self.db.cursor() as cursor:
            cursor.execute("INSERT INTO items VALUES (%s)", [item])

    def make_state(self, txn_id):
        self.states.append(txn_id)
        return txn_id.encode()

    def commit(self, *exports):
        """Commits with an agent whose answers to the exports are `exports`."""
        with mock.patch.object(steadfast, "export_state", side_effect=exports):
            return steadfast_pg.commit_exactly_once(self.db, None, self.make_state)

    def items(self):
        return [item for (item,) in self.postgres.query("SELECT item FROM items")]

    def test_a_transaction_is_committed_also_without_a_backup(self):
        exports = [(True,), (False,), (steadfast.NotProtected(),), (steadfast.TimedOut(), steadfast.TimedOut(), True)]
        for number, results in enumerate(exports):
            self.insert(str(number))
            self.assertEqual(self.commit(*results), "committed")
        self.assertEqual(len(self.items()), len(exports))
        self.assertEqual([steadfast_pg.outcome(self.db, txn_id) for txn_id in self.states], ["committed"] * len(exports))

    def test_a_transaction_whose_state_cannot_be_exported_is_rolled_back(self):
        timeouts = [steadfast.TimedOut()] * steadfast_pg.EXPORT_TRIES
        for errors in [steadfast.Emigrated()], [steadfast.Closed()], [steadfast.NoAgent()], [OSError()], timeouts:
            self.insert("item")
            with self.assertRaises(type(errors[0])):
                self.commit(*errors)
            self.assertEqual(steadfast_pg.outcome(self.db, self.states[-1]), "aborted")
        self.assertEqual(self.items(), [])

    def test_a_failed_transaction_is_exported_and_aborted(self):
        self.insert("item")
        with self.assertRaises(psycopg2.Error):
            self.db.cursor().execute("SELECT 1 / 0")
        self.assertEqual(self.commit(True), "aborted")
        # A deferred constraint fails in the commit.
        self.insert("item")
        self.insert("item")
        self.assertEqual(self.commit(True), "aborted")
        self.assertEqual([steadfast_pg.outcome(self.db, txn_id) for txn_id in self.states], ["aborted"] * 2)
        self.assertEqual(self.items(), [])

    def test_a_new_connection_ends_the_old_one_and_its_outcome_is_final(self):
        self.insert("item")
        txn_id = steadfast_pg.get_txn_id(self.db)
        db = self.reconnect()
        self.assertEqual(steadfast_pg.outcome(db, txn_id), "aborted")
        with self.assertRaises(psycopg2.Error):
            self.commit(True)
        self.assertEqual((self.states, self.items()), ([], []))

    def test_a_new_connection_does_not_end_other_sessions(self):
        self.insert("item")
        steadfast_pg.reconnect_db(self.postgres.dsn, steadfast_pg.new_session()).close()
        self.assertEqual(self.commit(True), "committed")

    def test_an_outcome_that_the_database_cannot_tell_is_an_error(self):
        with self.assertRaises(steadfast_pg.OutcomeUnknown):
            steadfast_pg.outcome(self.db, "3")
        running = steadfast_pg.reconnect_db(self.postgres.dsn, steadfast_pg.new_session())
        self.addCleanup(running.close)
        with self.assertRaises(steadfast_pg.OutcomeUnknown):
            steadfast_pg.outcome(self.db, steadfast_pg.get_txn_id(running))

    def test_the_timeout_of_a_new_connection_holds(self):
        with mock.patch.object(steadfast_pg, "_end_other_backends", return_value=1):
            with self.assertRaises(psycopg2.OperationalError):
                steadfast_pg.reconnect_db(self.postgres.dsn, self.session, timeout=0.01)


if __name__ == "__main__":
    unittest.main()
