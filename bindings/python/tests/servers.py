"""Starts the example servers, and speaks to them."""

import array
import fcntl
import os
import socket
import struct
import subprocess
import sys
import termios

from agent import IMPORT, ROOT, Agent, answering

BUFFER_TOO_SMALL = 5
TCP_INFO_ACKED = 120  # offset of tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info


def start(test, agent, program, *arguments):
    """Starts an example server, which ends with the test. Returns its process and its addresses."""
    environment = os.environ | {"STEADFAST_SNAPSHOTS": agent, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "examples" / program, *arguments]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    test.addCleanup(server.communicate)
    test.addCleanup(server.kill)
    ready, *names = server.stdout.readline().split()
    test.assertEqual(ready, "ready:")
    addresses = [name.rpartition(":") for name in names]
    return server, [(host.strip("[]"), int(port)) for host, _, port in addresses]


def play(test, handle):
    """Plays an agent, which ends with the test. Returns the path of its socket."""
    agent = Agent(answering(handle))
    test.addCleanup(agent.close)
    return agent.path


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


class PlayedTakeover:
    """An agent that keeps all snapshots. From `continue_from` on, it gives one of them to each new connection."""

    def __init__(self):
        # The state, and the bytes that the server had read and written.
        self.snapshots = []
        self.restart_point = None

    def handle(self, request):
        if self.restart_point is None and request.operation != IMPORT:
            self.snapshots.append((request.state, *offsets(request.connection)))
            return 0, 1
        if self.restart_point is None or request.operation != IMPORT:
            return 0, 0
        size = len(self.restart_point)
        return (0, 1, size, self.restart_point) if size <= request.size else (BUFFER_TOO_SMALL, 0, size)

    def continue_from_each(self, test, address, sent):
        """Sends `sent`, then continues the connection from each snapshot. Returns the whole output."""
        output = converse(address, sent)
        for self.restart_point, read, written in list(self.snapshots):
            test.assertTrue(converse(address, sent[read:]) == output[written:], f"from {read} and {written} on")
        self.restart_point = None
        return output
