#!/usr/bin/env python3
"""pg_client.py HOST PORT NAME: sends series of transactions to pg_front_end.py, over one connection, and checks the answers.

The items are NAME-0, NAME-1 and so on. The amounts depend only on the name and the seed. Each item must be answered once, in order. The
client never connects a second time.

At the end, the client prints one line of JSON: {"name": ..., "committed": [...], "aborted": [...], "error": null}. The lists have the items
with these outcomes. If the connection breaks or an answer is wrong, "error" says what happened, and the exit code is 1.
"""

import argparse
import http.client
import json
import random
import sys
import time


class WrongAnswer(Exception):
    """The front-end did not answer as it should."""


def send_series(connection, name, lines, answered):
    """Sends a series. Adds each item to the list of its outcome in `answered` as soon as its answer arrives."""
    body = "".join(f"{item} {amount}\n" for item, amount in lines)
    connection.request("POST", "/series", body.encode(), {"Client": name})
    response = connection.getresponse()
    if response.status != 200:
        raise WrongAnswer(f"status {response.status} {response.reason}")
    for item, _ in lines:
        answer = response.readline().decode()
        match answer.rstrip("\n").split(" "):
            case [answered_item, outcome] if answered_item == item and outcome in answered and answer.endswith("\n"):
                answered[outcome].append(item)
            case [""]:
                raise ConnectionError(f"the connection ended before the outcome of {item}")
            case _:
                raise WrongAnswer(f"expected the outcome of {item}, received {answer!r}")
    rest = response.read()
    if rest:
        raise WrongAnswer(f"received more than the outcomes: {rest[:100]!r}")
    if response.will_close:
        raise WrongAnswer("the front-end ends the connection")


def run(options, answered):
    """Sends all series. Returns an error, or None."""
    amounts = random.Random(f"{options.seed} {options.name}")
    items = [(f"{options.name}-{number}", amounts.randint(-1000, 1000)) for number in range(options.items)]
    connection = http.client.HTTPConnection(options.host, options.port, timeout=options.timeout)
    connection.auto_open = False
    try:
        connection.connect()
        for first in range(0, len(items), options.series_size):
            if first > 0:
                time.sleep(options.pause / 1000)
            send_series(connection, options.name, items[first : first + options.series_size], answered)
    except (OSError, http.client.HTTPException, WrongAnswer) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return None


def main():
    parser = argparse.ArgumentParser(description="Sends series of transactions to pg_front_end.py, and checks the answers.")
    parser.add_argument("host", metavar="HOST")
    parser.add_argument("port", metavar="PORT", type=int)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--items", type=int, default=100, help="number of items (default: %(default)s)")
    parser.add_argument("--series-size", type=int, default=10, help="items per series (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=0, help="milliseconds between two series (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the amounts (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds without any answer (default: %(default)s)")
    options = parser.parse_args()
    answered = {"committed": [], "aborted": []}
    error = run(options, answered)
    print(json.dumps({"name": options.name, **answered, "error": error}), flush=True)
    sys.exit(error is not None)


if __name__ == "__main__":
    main()
