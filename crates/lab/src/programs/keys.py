"""Clients of a Redis that change the same keys. Usage: keys.py HOST PORT SECONDS

Four connections work at the same time, then pause for two seconds, then work again for SECONDS. Ends well only if each reply fits an
order in which the server has executed the commands of all connections. It never connects a second time.
"""

import socket
import sys
import threading
import time

CLIENTS = 4
FIRST = 300


class Client:
    def __init__(self, host, port, number):
        self.stream = socket.create_connection((host, port))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.stream.makefile("rb")
        self.number = number
        self.counts, self.ends, self.lengths = [], [], []

    def call(self, *words):
        self.stream.sendall(" ".join(words).encode() + b"\r\n")
        line = self.replies.readline().rstrip()
        if line[:1] == b"$" and line != b"$-1":
            return self.replies.read(int(line[1:]) + 2)[:-2]
        if line[:1] not in (b":", b"+", b"$"):
            raise ValueError(f"client {self.number}: {words}: {line}")
        return line[1:]

    def round(self, number):
        self.counts.append(int(self.call("INCR", "counter")))
        self.ends.append(int(self.call("APPEND", "text", f"{self.number}.{number % 10},")))
        self.lengths.append(int(self.call("RPUSH", "list", f"{self.number}.{number}")))
        self.call("SET", "last", f"{self.number}.{number}")
        self.call("SADD", "set", f"{self.number}.{number}")
        if number % 3 == 0:
            self.call("SPOP", "set")
        self.call("SET", "brief", str(self.number), "PX", "3")
        self.call("GET", "brief")


def all_at_once(clients, work):
    problems = []

    def run(client):
        try:
            work(client)
        except Exception as problem:
            problems.append(f"client {client.number}: {problem!r}")

    threads = [threading.Thread(target=run, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        sys.exit("; ".join(problems))


def first(client):
    for number in range(FIRST):
        client.round(number)


def second(client):
    end = time.monotonic() + int(seconds)
    number = FIRST
    while time.monotonic() < end:
        client.round(number)
        number += 1


def check(clients):
    counts = sorted(count for client in clients for count in client.counts)
    lengths = sorted(length for client in clients for length in client.lengths)
    ends = sorted(end for client in clients for end in client.ends)
    expected = list(range(1, len(counts) + 1))
    if counts != expected or lengths != expected or ends != [4 * number for number in expected]:
        sys.exit("the replies fit no order of the commands")
    if any(client.counts != sorted(client.counts) for client in clients):
        sys.exit("the counter has gone back")
    if int(clients[0].call("GET", "counter")) != len(counts):
        sys.exit("the server has lost commands")


host, port, seconds = sys.argv[1:]
clients = [Client(host, int(port), number) for number in range(CLIENTS)]
all_at_once(clients, first)
print("pause", flush=True)
time.sleep(2)
print("work", flush=True)
all_at_once(clients, second)
check(clients)
