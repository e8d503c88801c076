"""The program that inetd starts for each connection. Standard input and output are the connection.

A client that sends something gets a line about every 20 ms, with a number, the time and a random number.
"""

import os
import time

INTERVAL = 0.02
LINES = 200

if os.read(0, 4096):
    os.write(1, b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    for number in range(LINES):
        line = f"{number} {time.time_ns()} {os.urandom(4).hex()}\n"
        os.write(1, line.encode())
        time.sleep(INTERVAL)
