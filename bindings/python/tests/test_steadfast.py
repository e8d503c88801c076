"""The module against a fake agent."""

import os
import socket
import threading
import time
import unittest
from unittest import mock

from agent import EXPORT, EXPORT_AND_WAIT, IMPORT, Agent, answer, answering, receive

import steadfast

FIRST_BUFFER = 64 << 10
NUMBERS = bytes(at % 251 for at in range(1 << 20))


class SnapshotTest(unittest.TestCase):
    def setUp(self):
        self.connection, other = socket.socketpair()
        self.addCleanup(self.connection.close)
        self.addCleanup(other.close)
        self.addCleanup(self.close_stream)

    def close_stream(self):
        steadfast._thread.stream = None

    def use(self, path, patience=10):
        for name, value in [("_path", path), ("_patience", patience)]:
            patch = mock.patch.object(steadfast, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def play(self, script):
        agent = Agent(script)
        self.use(agent.path)
        return agent

    def play_handler(self, handle):
        agent = self.play(answering(handle))
        self.addCleanup(agent.close)

    def test_the_agent_receives_the_state_and_the_socket_itself(self):
        received = []

        def handle(request):
            is_same = os.path.sameopenfile(request.connection.fileno(), self.connection.fileno())
            received.append((request.operation, request.size, request.state, is_same))
            return 0, int(request.operation == EXPORT_AND_WAIT)

        self.play_handler(handle)
        large = NUMBERS * 16
        self.assertIs(steadfast.export_state(self.connection, b"state"), True)
        self.assertIs(steadfast.export_state(self.connection.fileno(), bytearray(large), wait=False), False)
        self.assertIs(steadfast.export_state(self.connection, memoryview(b"")), True)
        self.assertIsNone(steadfast.import_state(self.connection))
        expected = [
            (EXPORT_AND_WAIT, 5, b"state", True),
            (EXPORT, len(large), large, True),
            (EXPORT_AND_WAIT, 0, b"", True),
            (IMPORT, FIRST_BUFFER, b"", True),
        ]
        self.assertTrue(received == expected)

    def test_each_status_is_an_error_of_its_own(self):
        self.play_handler(lambda request: (request.size, 0, 1000))
        errors = {
            1: steadfast.Emigrated,
            2: steadfast.NotProtected,
            3: steadfast.Closed,
            4: steadfast.TooLarge,
            6: steadfast.TimedOut,
            7: steadfast.ProtocolError,
            8: steadfast.ProtocolError,
        }
        for status, error in errors.items():
            with self.assertRaises(error) as raised:
                steadfast.export_state(self.connection, bytes(status))
            self.assertEqual(getattr(raised.exception, "limit", 1000), 1000)

    def test_a_large_state_is_imported_with_a_second_request(self):
        rooms = []

        def handle(request):
            rooms.append((request.stream, request.size))
            if request.size < len(NUMBERS):
                return 5, 0, len(NUMBERS)
            return 0, 1, len(NUMBERS), NUMBERS

        self.play_handler(handle)
        self.assertTrue(steadfast.import_state(self.connection) == NUMBERS)
        self.assertEqual(rooms, [(0, FIRST_BUFFER), (0, len(NUMBERS))])

    def test_an_empty_state_is_a_state(self):
        self.play_handler(lambda request: (0, 1, 0))
        self.assertEqual(steadfast.import_state(self.connection), b"")

    def test_an_import_does_not_believe_impossible_sizes(self):
        reply = ()
        self.play_handler(lambda request: reply)
        for reply in [(0, 1, FIRST_BUFFER + 1), (5, 0, FIRST_BUFFER), (5, 0, steadfast.SNAPSHOT_MAX + 1)]:
            with self.assertRaises(steadfast.ProtocolError):
                steadfast.import_state(self.connection)

    def test_a_state_above_the_limit_does_not_reach_the_agent(self):
        self.use("/nonexistent/snapshots.sock")
        with self.assertRaises(steadfast.TooLarge) as raised:
            steadfast.export_state(self.connection, bytes(steadfast.SNAPSHOT_MAX + 1))
        self.assertEqual(raised.exception.limit, steadfast.SNAPSHOT_MAX)

    def test_a_request_that_a_restart_breaks_is_made_again(self):
        def script(listener):
            # The first agent dies at once. The second one dies in its answer's header, and the third one in the imported state.
            listener.accept()[0].close()
            with listener.accept()[0] as stream:
                receive(stream).connection.close()
                stream.sendall(bytes(5))
            with listener.accept()[0] as stream:
                receive(stream).connection.close()
                answer(stream, 0, 1, 5, b"st")
            # The fourth one serves two requests on one stream, and dies while the library has no request.
            with listener.accept()[0] as stream:
                for _ in range(2):
                    receive(stream).connection.close()
                    answer(stream, 0, 1, 5, b"state")
            with listener.accept()[0] as stream:
                request = receive(stream)
                request.connection.close()
                assert request.state == b"last"
                answer(stream, 0, 1)

        agent = self.play(script)
        for _ in range(2):
            self.assertEqual(steadfast.import_state(self.connection), b"state")
        self.assertTrue(steadfast.export_state(self.connection, b"last"))
        agent.finish()

    def test_an_agent_that_stays_away_is_an_error(self):
        self.use("/nonexistent/snapshots.sock", patience=0.05)
        before = time.monotonic()
        with self.assertRaises(steadfast.NoAgent) as raised:
            steadfast.export_state(self.connection, b"state")
        self.assertIsInstance(raised.exception.__cause__, FileNotFoundError)
        self.assertGreaterEqual(time.monotonic() - before, 0.05)

    def test_a_refusal_counts_even_if_the_agent_has_not_read_the_state(self):
        def script(listener):
            with listener.accept()[0] as stream:
                answer(stream, 7)

        agent = self.play(script)
        with self.assertRaises(steadfast.ProtocolError):
            steadfast.export_state(self.connection, bytes(4 << 20))
        agent.finish()

    def test_a_closed_socket_is_an_error_of_the_operating_system(self):
        self.play_handler(lambda request: (0, 1))
        closed = socket.socket()
        closed.close()
        with self.assertRaises(OSError):
            steadfast.export_state(closed, b"state")

    def test_without_an_agent_nothing_is_kept_and_each_connection_is_new(self):
        self.use("")
        self.assertIs(steadfast.export_state(self.connection, b"state"), False)
        self.assertIsNone(steadfast.import_state(self.connection))

    def test_each_thread_and_each_process_has_a_stream_of_its_own(self):
        streams = []

        def handle(request):
            streams.append(request.stream)
            return 0, 1

        self.play_handler(handle)
        export = lambda: steadfast.export_state(self.connection, b"state")
        export()
        thread = threading.Thread(target=export)
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            export()
            os._exit(0)
        os.waitpid(child, 0)
        export()
        self.assertEqual(streams, [0, 1, 2, 0])


if __name__ == "__main__":
    unittest.main()
