"""The example server, with and without an agent."""

import array
import fcntl
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

from agent import IMPORT, ROOT, Agent, answering

LARGE = bytes(at % 251 for at in range(1_300_000))
TCP_INFO_ACKED = 120  # offset of tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return True
    except OSError:
        return False


def converse(address, request, ends=False):
    """Sends `request`, ends the input if `ends`, and reads until the server ends the connection."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(request)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        output = b""
        while received := connection.recv(1 << 20):
            output += received
        return output


def offsets(connection):
    """Bytes that the owner of `connection` has read and written. The owner waits, so only the client changes the counters."""

    def counters():
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return struct.unpack_from("=QQ", info, TCP_INFO_ACKED)

    def queued(request):
        count = array.array("i", [0])
        fcntl.ioctl(connection, request, count)
        return count[0]

    while True:
        acknowledged, received = before = counters()
        unread, unacknowledged = queued(termios.FIONREAD), queued(termios.TIOCOUTQ)
        if counters() == before:
            return received - unread, acknowledged + unacknowledged


class FileServerTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        (self.directory / "large").write_bytes(LARGE)
        (self.directory / "small file").write_text("content")
        (self.directory / "empty").touch()

    def start(self, agent, *addresses):
        """Starts a server. Returns its process and its addresses."""
        environment = os.environ | {"STEADFAST_SNAPSHOTS": agent, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, ROOT / "examples/file_server.py", self.directory, *addresses]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        ready, *names = server.stdout.readline().split()
        self.assertEqual(ready, "ready:")
        addresses = [name.rpartition(":") for name in names]
        return server, [(host.strip("[]"), int(port)) for host, _, port in addresses]

    def play(self, handle):
        agent = Agent(answering(handle))
        self.addCleanup(agent.close)
        return agent.path

    def test_it_answers_as_http_asks(self):
        names = ["127.0.0.1:0", "[::1]:0"] if has_ipv6() else ["127.0.0.1:0"]
        _, addresses = self.start("", *names)
        self.assertEqual(len(addresses), len(names))
        conversations = json.loads((ROOT.parent / "tests/file_server.json").read_text())
        bad = next(each["output"] for each in conversations if each["output"].startswith("HTTP/1.1 400"))
        for length in [1024, 9000]:
            conversations.append({"input": f"GET /{'a' * length} HTTP/1.1\r\n\r\n", "output": bad})
        for address in addresses:
            for each in conversations:
                with self.subTest(each["input"][:100]):
                    self.assertEqual(converse(address, each["input"].encode(), ends=True).decode(), each["output"])

    def test_it_goes_on_from_each_snapshot(self):
        snapshots = []
        restart_point = None

        def handle(request):
            if restart_point is None and request.operation != IMPORT:
                snapshots.append((request.state, *offsets(request.connection)))
                return 0, 1
            if restart_point is not None and request.operation == IMPORT:
                return 0, 1, len(restart_point), restart_point
            return 0, 0

        # The requests are larger than the server's buffer, so a snapshot's input may end within a request.
        sent = b"GET /large HTTP/1.1\r\n\r\nHEAD /large HTTP/1.1\r\n\r\n"
        for number in range(60):
            name = [b"none", b"empty", b"small%20file"][number % 3]
            sent += b"GET /%s HTTP/1.1\r\nPadding: %s\r\n\r\n" % (name, b"a" * (5 * number))
        sent += b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n"

        _, [address] = self.start(self.play(handle), "127.0.0.1:0")
        output = converse(address, sent)
        # Four blocks of each large file are followed by another one, and there are 63 requests.
        self.assertEqual(len(snapshots), 2 * 4 + 63)
        self.assertGreater(len(output), 2 * len(LARGE))
        for restart_point, read, written in snapshots:
            self.assertTrue(converse(address, sent[read:]) == output[written:], f"from {read} and {written} on")

    def test_it_leaves_an_emigrated_connection_in_silence(self):
        server, [address] = self.start(self.play(lambda request: (int(request.operation != IMPORT),)), "127.0.0.1:0")
        output = converse(address, b"GET /large HTTP/1.1\r\n\r\n")
        self.assertEqual(len(output), len("HTTP/1.1 200 OK\r\nContent-Length: 1300000\r\n\r\n") + 256 * 1024)
        server.kill()
        self.assertEqual(server.communicate()[1], "")


if __name__ == "__main__":
    unittest.main()
