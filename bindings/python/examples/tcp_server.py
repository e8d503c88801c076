"""A TCP server on several addresses, with one thread per connection. The example servers use it."""

import socket
import sys
import threading
import time

import steadfast


def export(connection, state, wait=False):
    """Exports a state. After a failure, a takeover would go on from an earlier snapshot."""
    try:
        steadfast.export_state(connection, state, wait)
    except steadfast.NotProtected:
        pass
    except (steadfast.Emigrated, steadfast.Closed) as error:
        raise ConnectionError from error
    except (steadfast.SnapshotError, OSError) as error:
        print(f"cannot export a state; a takeover would go on from an earlier one: {error}", file=sys.stderr)


def import_state(connection):
    """The state of a continued connection; None for a new connection. A connection of an unprotected address is new."""
    try:
        return steadfast.import_state(connection)
    except steadfast.NotProtected:
        return None


def finish(connection):
    """Ends the output, then reads until the client ends its input too.

    If a server closes a connection with unread input, TCP resets it, and the client may lose the end of the output.
    """
    connection.settimeout(1)
    connection.shutdown(socket.SHUT_WR)
    for _ in range(256):
        if not connection.recv(4096):
            break


def run_connection(connection, serve, failures):
    with connection:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve(connection)
            finish(connection)
        except (steadfast.Emigrated, steadfast.Closed, EOFError, ConnectionError, TimeoutError):
            pass  # the other node serves the client now, or the client has gone
        except (steadfast.SnapshotError, OSError, *failures) as error:
            print(f"a connection is closed: {error}", file=sys.stderr)


def run_listener(listener, serve, failures):
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(0.01)  # nothing to accept after all, or too many open files
            continue
        threading.Thread(target=run_connection, args=(connection, serve, failures), daemon=True).start()


def listen_at(address):
    """A socket that listens at `address`, which is ADDRESS:PORT or [IPV6]:PORT."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=socket.SOMAXCONN)


def run(addresses, serve, failures=()):
    """Accepts connections at `addresses` for ever. Prints one line when it is ready.

    `serve(connection)` serves one connection. If it returns, the connection is ended in order. Exceptions in `failures` are printed.
    """
    listeners = [listen_at(address) for address in addresses]
    names = [listener.getsockname()[:2] for listener in listeners]
    print("ready:", *(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in names), flush=True)
    threads = [threading.Thread(target=run_listener, args=(listener, serve, failures), daemon=True) for listener in listeners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
