"""tally_server.py MODE RESULTS ADDRESS:PORT...: reads a connection's input to its end, and tells its length and CRC-32. A server for tests.

MODE is `answer`: the client ends its input first, and gets "LENGTH CRC\n" and 2 MB more. Or it is `silent`: the server says "hello\n" and ends
its output first, and appends "LENGTH CRC\n" to the file RESULTS at the end of the input.
"""

import functools
import socket
import struct
import sys
import time
import zlib

import tcp_server

FORMAT = struct.Struct("=QIQ")
# Bytes of input from one state to the next.
EVERY = 64 * 1024
BODY = bytes((at * 31 + 7) % 251 for at in range(2_000_000))
PART = 16_384


def serve(connection, mode, results):
    state = tcp_server.import_state(connection)
    length, crc, sent = FORMAT.unpack(state) if state is not None else (0, 0, 0)
    exported = length
    if mode == "silent":
        if state is None:
            connection.sendall(b"hello\n")
            tcp_server.export(connection, FORMAT.pack(0, 0, 6))
        connection.shutdown(socket.SHUT_WR)
    while part := connection.recv(65536):
        length, crc = length + len(part), zlib.crc32(part, crc)
        if mode == "answer" and length - exported >= EVERY:
            tcp_server.export(connection, FORMAT.pack(length, crc, 0))
            exported = length
    if mode == "silent":
        with open(results, "a", encoding="ascii") as file:
            file.write(f"{length} {crc}\n")
        return
    answer = f"{length} {crc}\n".encode() + BODY
    while sent < len(answer):
        sent += connection.send(answer[sent : sent + PART])
        tcp_server.export(connection, FORMAT.pack(length, crc, sent))
        time.sleep(0.005)


if __name__ == "__main__":
    MODE, RESULTS, *ADDRESSES = sys.argv[1:]
    tcp_server.run(ADDRESSES, functools.partial(serve, mode=MODE, results=RESULTS))
