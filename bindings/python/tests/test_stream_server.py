"""The example streaming server, with and without an agent."""

import unittest

from servers import PlayedTakeover, converse, play, start


class StreamServerTest(unittest.TestCase):
    def test_it_goes_on_from_each_snapshot(self):
        agent = PlayedTakeover()
        options = ["-k", "3", "-s", "100000", "127.0.0.1:0"]
        _, [address] = start(self, play(self, agent.handle), "stream_server.py", *options)
        output = agent.continue_from_each(self, address, b"STREAM 10100 1000 100\n")
        self.assertEqual(output, bytes((at * 31 + 7) % 251 for at in range(10100)))
        places = [(written, len(state)) for state, _, written in agent.snapshots]
        self.assertEqual(places, [(3000, 100_000), (6000, 100_000), (9000, 100_000)])

    def test_it_answers_no_other_line(self):
        server, [address] = start(self, "", "stream_server.py", "127.0.0.1:0")
        lines = [b"STREAM -1 1000 100\n", b"STREAM 1 0 1\n", b"STREAM 1 65537 1\n", b"STREAM 1 1\n", b"GET / HTTP/1.1\n", b"x" * 64, b"STREAM 9"]
        for line in lines:
            with self.subTest(line):
                self.assertEqual(converse(address, line, ends=True), b"")
        self.assertEqual(converse(address, b"STREAM 3 65536 0\n"), bytes([7, 38, 69]))
        server.kill()
        self.assertEqual(server.communicate()[1], "")


if __name__ == "__main__":
    unittest.main()
