"""A client of an FTP server. Usage: ftp.py HOST PORT COUNT

Logs in as an anonymous user, and asks for a listing COUNT times, over the control connection. Ends well only if each reply is whole, and all
listings are equal. Prints a line for each. It never connects a second time.
"""

import socket
import sys
import time

host, port, count = sys.argv[1:]
stream = socket.create_connection((host, int(port)))
replies = stream.makefile("rb")


def reply(expected):
    lines = [replies.readline()]
    if lines[0][3:4] == b"-":
        while lines[-1][:4] != lines[0][:3] + b" ":
            lines.append(replies.readline())
            if not lines[-1]:
                break
    if not lines[0].startswith(expected):
        sys.exit(f"{expected} expected, but the reply is {lines}")
    return lines


def ask(command, expected):
    stream.sendall(command + b"\r\n")
    return reply(expected)


reply(b"220")
ask(b"USER anonymous", b"230")
listing = None
for number in range(int(count)):
    now = ask(b"STAT .", b"213")
    if listing not in (None, now):
        sys.exit(f"listing {number} is {now}, and the one before was {listing}")
    listing = now
    print(number, flush=True)
    time.sleep(0.02)
ask(b"QUIT", b"221")
