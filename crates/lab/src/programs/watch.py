"""A client of the streaming server. Usage: watch.py HOST PORT COUNT

Ends well only if COUNT lines come, in order of their numbers and of the server's time. Prints a line for each. It never connects a second
time.
"""

import socket
import sys

host, port, count = sys.argv[1:]
stream = socket.create_connection((host, int(port)))
stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
lines = stream.makefile("rb")
while lines.readline() not in (b"\r\n", b""):
    pass
last = 0
for number in range(int(count)):
    words = lines.readline().split()
    if len(words) != 3 or int(words[0]) != number or len(words[2]) != 8:
        sys.exit(f"line {number} is {words}")
    if int(words[1]) < last:
        sys.exit(f"the time has gone back at line {number}")
    last = int(words[1])
    print(number, flush=True)
