"""A streaming server at all addresses of both families. Usage: stream.py PORT [diverge | diverge-visibly]

Each client that sends something gets a line about every 20 ms, with a number, the time and a random number. What a line says, and how many
lines go at once, depends on the server's clock. With `diverge`, the server also asks for random bytes that it does not use. With
`diverge-visibly`, some of them are in a line.
"""

import os
import select
import socket
import sys
import time

INTERVAL = 0.02
LINES = 200


def listen(family, address, port):
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind((address, port))
    listener.listen(128)
    listener.setblocking(False)
    return listener


port, how = int(sys.argv[1]), sys.argv[2:]
poller = select.epoll()
listeners = {}
for family, address in [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]:
    listener = listen(family, address, port)
    listeners[listener.fileno()] = listener
    poller.register(listener, select.EPOLLIN)
clients, sent = {}, {}


def end(number):
    poller.unregister(number)
    sent.pop(number, None)
    clients.pop(number).close()


while True:
    for number, _ in poller.poll(INTERVAL):
        if number in listeners:
            try:
                client, _ = listeners[number].accept()
            except BlockingIOError:
                continue
            client.setblocking(False)
            clients[client.fileno()] = client
            poller.register(client, select.EPOLLIN)
            continue
        try:
            data = clients[number].recv(4096)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        if not data:
            end(number)
        elif number not in sent:
            clients[number].send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            sent[number] = 0
    for number in list(sent):
        if sent[number] == LINES:
            continue
        surplus = os.urandom(7) if how and sent[number] % 10 == 5 else b""
        line = f"{sent[number]} {time.time_ns()} {os.urandom(4).hex()}\n"
        if surplus and how == ["diverge-visibly"]:
            line = line[:-9] + surplus[:4].hex() + "\n"
        try:
            clients[number].send(line.encode())
            sent[number] += 1
        except OSError:
            end(number)
