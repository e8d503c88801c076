"""The example server, with and without an agent."""

import json
import pathlib
import socket
import tempfile
import unittest

from agent import IMPORT, ROOT
from servers import PlayedTakeover, converse, play, start

LARGE = bytes(at % 251 for at in range(1_300_000))


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return True
    except OSError:
        return False


class FileServerTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        (self.directory / "large").write_bytes(LARGE)
        (self.directory / "small file").write_text("content")
        (self.directory / "empty").touch()

    def start(self, agent, *addresses):
        return start(self, agent, "file_server.py", self.directory, *addresses)

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
        agent = PlayedTakeover()
        # The requests are larger than the server's buffer, so a snapshot's input may end within a request.
        sent = b"GET /large HTTP/1.1\r\n\r\nHEAD /large HTTP/1.1\r\n\r\n"
        for number in range(60):
            name = [b"none", b"empty", b"small%20file"][number % 3]
            sent += b"GET /%s HTTP/1.1\r\nPadding: %s\r\n\r\n" % (name, b"a" * (5 * number))
        sent += b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n"

        _, [address] = self.start(play(self, agent.handle), "127.0.0.1:0")
        output = agent.continue_from_each(self, address, sent)
        # Four blocks of each large file are followed by another one, and there are 63 requests.
        self.assertEqual(len(agent.snapshots), 2 * 4 + 63)
        self.assertGreater(len(output), 2 * len(LARGE))

    def test_it_leaves_an_emigrated_connection_in_silence(self):
        server, [address] = self.start(play(self, lambda request: (int(request.operation != IMPORT),)), "127.0.0.1:0")
        output = converse(address, b"GET /large HTTP/1.1\r\n\r\n")
        self.assertEqual(len(output), len("HTTP/1.1 200 OK\r\nContent-Length: 1300000\r\n\r\n") + 256 * 1024)
        server.kill()
        self.assertEqual(server.communicate()[1], "")


if __name__ == "__main__":
    unittest.main()
