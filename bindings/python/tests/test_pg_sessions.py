"""Sessions of PostgreSQL that go on in the middle of a transaction, whatever front-ends do."""

import io
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from agent import ROOT
from test_pg import MISSING, PostgreSQL

if MISSING is None:
    import psycopg2
    import psycopg2.extensions

    import steadfast_pg

KEEPER = ROOT / "steadfast_pg_sessions.py"
# A front-end that is killed: it takes its session's name and its DSN, and says when it has set its savepoint.
FRONT_END = """
import sys, time, steadfast_pg
from unittest import mock
states = []
with mock.patch.object(steadfast_pg, "_export", lambda connection, state: states.append(state)):
    db, _ = steadfast_pg.resume_db(sys.argv[2], sys.argv[1])
    with db.cursor() as cursor:
        cursor.execute("INSERT INTO steps VALUES (%s, 'first')", [sys.argv[1]])
        name = steadfast_pg.savepoint(db, None, lambda name: name)
        cursor.execute("INSERT INTO steps VALUES (%s, 'lost')", [sys.argv[1]])
        print(states[0], flush=True)
        cursor.execute(sys.argv[3])
        time.sleep(60)
"""


@unittest.skipIf(MISSING, MISSING)
class SessionKeeperTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.postgres = PostgreSQL()
        cls.addClassCleanup(cls.postgres.close)

    def setUp(self):
        self.postgres.query("CREATE TABLE IF NOT EXISTS steps (session text, step text)")
        exports = mock.patch.object(steadfast_pg, "_export", lambda connection, state: None)
        exports.start()
        self.addCleanup(exports.stop)
        self.session = steadfast_pg.new_session()
        self.dsn = self.start_keeper()

    def start_keeper(self, *options):
        """Starts a keeper, which ends with the test. Returns the DSN that leads to it."""
        database = f"{self.postgres.directory.name}/.s.PGSQL.5432"
        command = [sys.executable, KEEPER, *options, "127.0.0.1:0", database]
        self.keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.keeper.communicate)
        self.addCleanup(self.keeper.kill)
        ready, name = self.keeper.stdout.readline().split()
        self.assertEqual(ready, "ready:")
        host, _, port = name.rpartition(":")
        return f"host={host} port={port} user=test dbname=postgres sslmode=prefer"

    def start_front_end(self, query="SELECT 1"):
        """Starts a front-end in the middle of a transaction. Returns its process and its savepoint."""
        command = [sys.executable, "-c", FRONT_END, self.session, self.dsn, query]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "STEADFAST_SNAPSHOTS": ""}
        front_end = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(front_end.communicate)
        self.addCleanup(front_end.kill)
        return front_end, front_end.stdout.readline().strip()

    def resume(self, savepoint, **options):
        db, goes_on = steadfast_pg.resume_db(options.get("dsn", self.dsn), self.session, savepoint)
        self.addCleanup(db.close)
        return db, goes_on

    def finish(self, db):
        """Executes the second step, and commits."""
        with db.cursor() as cursor:
            cursor.execute("INSERT INTO steps VALUES (%s, 'second')", [self.session])
        return steadfast_pg.commit_exactly_once(db, None, str)

    def steps(self):
        return [step for step, in self.postgres.query(f"SELECT step FROM steps WHERE session = '{self.session}'")]

    def wait_until_held(self, count, state="idle in transaction%"):
        """Waits until the session has `count` back-ends in a transaction, or in another state."""
        query = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{self.session}' AND state LIKE '{state}'"
        deadline = time.monotonic() + 30
        while self.postgres.query(query) != [(count,)]:
            self.assertLess(time.monotonic(), deadline, "the back-ends do not come to rest")
            time.sleep(0.01)

    def test_a_successor_goes_on_from_the_savepoint(self):
        front_end, savepoint = self.start_front_end()
        front_end.kill()
        front_end.wait()
        db, goes_on = self.resume(savepoint)
        self.assertTrue(goes_on)
        self.assertEqual(self.finish(db), steadfast_pg.COMMITTED)
        self.assertEqual(self.steps(), ["first", "second"])

    def test_what_the_front_end_had_begun_comes_to_its_end(self):
        front_end, savepoint = self.start_front_end("SELECT 1 / (random() * 0)::int FROM pg_sleep(1)")
        self.wait_until_held(1, "active")
        front_end.kill()
        front_end.wait()
        db, goes_on = self.resume(savepoint)
        self.assertTrue(goes_on, "the query failed, and is rolled back")
        self.assertEqual(self.finish(db), steadfast_pg.COMMITTED)
        self.assertEqual(self.steps(), ["first", "second"])

    def test_a_living_front_end_loses_the_session(self):
        front_end, savepoint = self.start_front_end("SELECT 1")
        db, goes_on = self.resume(savepoint)
        self.assertTrue(goes_on)
        self.assertEqual(self.finish(db), steadfast_pg.COMMITTED)
        front_end.kill()
        self.assertEqual(self.steps(), ["first", "second"])

    def test_one_of_many_that_come_at_once_has_the_session(self):
        front_end, savepoint = self.start_front_end()
        front_end.kill()
        outcomes = []

        def come():
            try:
                db, goes_on = steadfast_pg.resume_db(self.dsn, self.session, savepoint)
                outcomes.append((goes_on, self.finish(db)))
            except psycopg2.Error as error:
                outcomes.append(type(error))

        threads = [threading.Thread(target=come) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        went_on = [outcome for outcome in outcomes if outcome == (True, steadfast_pg.COMMITTED)]
        self.assertEqual(len(outcomes), 8)
        self.assertLessEqual(len(went_on), 1, outcomes)
        self.assertLessEqual(self.steps().count("first"), 1)

    def test_without_a_successor_the_transaction_is_aborted(self):
        self.dsn = self.start_keeper("--hold", "0.2")
        front_end, savepoint = self.start_front_end()
        self.wait_until_held(1)
        front_end.kill()
        self.wait_until_held(0)
        db, goes_on = self.resume(savepoint)
        self.assertFalse(goes_on)
        self.assertEqual(self.finish(db), steadfast_pg.COMMITTED)
        self.assertEqual(self.steps(), ["second"])

    def test_a_dead_keeper_aborts_the_transaction(self):
        front_end, savepoint = self.start_front_end()
        self.keeper.send_signal(signal.SIGKILL)
        self.keeper.wait()
        _, goes_on = self.resume(savepoint, dsn=self.start_keeper())
        self.assertFalse(goes_on)
        self.assertEqual(self.steps(), [])
        front_end.kill()

    def test_an_unknown_savepoint_and_none_abort_the_transaction(self):
        for savepoint in ("steadfast_0", None):
            with self.subTest(savepoint):
                front_end, _ = self.start_front_end()
                front_end.kill()
                db, goes_on = self.resume(savepoint)
                self.assertFalse(goes_on)
                self.assertEqual(db.info.transaction_status, psycopg2.extensions.TRANSACTION_STATUS_IDLE)
                self.wait_until_held(0)
        self.assertEqual(self.steps(), [])

    def test_another_user_does_not_get_the_session(self):
        self.postgres.query("DO $$ BEGIN CREATE ROLE other LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        front_end, _ = self.start_front_end()
        front_end.kill()
        other = psycopg2.connect(self.dsn.replace("user=test", "user=other"), application_name=self.session)
        self.assertEqual(other.info.transaction_status, psycopg2.extensions.TRANSACTION_STATUS_IDLE)
        other.close()
        with self.assertRaisesRegex(psycopg2.OperationalError, "nobody-of-this-name"):
            psycopg2.connect(self.dsn.replace("user=test", "user=nobody-of-this-name"), application_name=self.session)

    def test_sessions_without_a_transaction_and_without_a_name_just_pass(self):
        for name in (self.session, ""):
            db = psycopg2.connect(self.dsn, application_name=name)
            with db, db.cursor() as cursor:
                cursor.execute("SELECT generate_series(1, 100000)")
                self.assertEqual(len(cursor.fetchall()), 100000)
                cursor.copy_expert("COPY steps FROM STDIN", io.StringIO(f"{name}\tcopied\n"))
            db.close()
        self.assertEqual(self.keeper.poll(), None)

    def test_what_is_no_postgresql_is_left(self):
        host, port = self.dsn.split()[:2]
        address = host.removeprefix("host="), int(port.removeprefix("port="))
        whole = struct.pack(">II", 8, 3 << 16)
        for words in [b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack(">II", 8, 2 << 16), struct.pack(">I", 7), whole[:6], b"\0" * 100]:
            with self.subTest(words), socket.create_connection(address, timeout=20) as stranger:
                stranger.sendall(words)
                stranger.shutdown(socket.SHUT_WR)
                self.assertEqual(stranger.recv(100), b"")
        self.test_sessions_without_a_transaction_and_without_a_name_just_pass()


if __name__ == "__main__":
    unittest.main()
