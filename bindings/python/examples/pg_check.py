#!/usr/bin/env python3
"""pg_check.py DSN FILE...: compares the ledger of pg_front_end.py with the answers that the clients received.

Each file has lines of pg_client.py. Prints one JSON object with numbers:

    duplicates            items that are more than once in the ledger
    lost                  items answered "committed" that are not in the ledger
    contradicted          items answered "aborted" that are in the ledger
    unanswered_in_ledger  items in the ledger without an answer
    wrong_balances        clients whose balance is not the sum of their amounts in the ledger
    committed, aborted    answers

The wrong items and clients are listed on the standard error. If a client's connection breaks, its last item may be in the ledger without an
answer. All other numbers of the first five must be 0. Otherwise the exit code is 1.
"""

import json
import sys

import psycopg2

WRONG_BALANCES = """
SELECT client FROM accounts FULL JOIN (SELECT client, sum(amount) FROM ledger GROUP BY client) AS sums USING (client)
WHERE balance IS DISTINCT FROM coalesce(sum, 0)
"""


def read_answers(files):
    """The items that were answered "committed", and those that were answered "aborted"."""
    answers = {"committed": set(), "aborted": set()}
    for name in files:
        with open(name, encoding="utf-8") as file:
            for line in filter(str.strip, file):
                client = json.loads(line)
                for outcome, items in answers.items():
                    items.update((client["name"], item) for item in client[outcome])
    return answers["committed"], answers["aborted"]


def read_database(dsn):
    """The number of times that each item is in the ledger, and the clients with wrong balances."""
    db = psycopg2.connect(dsn)
    try:
        db.set_session(isolation_level="REPEATABLE READ", readonly=True)
        with db.cursor() as cursor:
            cursor.execute("SELECT client, item, count(*) FROM ledger GROUP BY client, item")
            ledger = {(client, item): count for client, item, count in cursor}
            cursor.execute(WRONG_BALANCES)
            return ledger, {client for (client,) in cursor}
    finally:
        db.close()


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: pg_check.py DSN FILE...")
    committed, aborted = read_answers(sys.argv[2:])
    ledger, wrong_balances = read_database(sys.argv[1])
    violations = {
        "duplicates": {item for item, count in ledger.items() if count > 1},
        "lost": committed - ledger.keys(),
        "contradicted": aborted & ledger.keys(),
        "wrong_balances": wrong_balances,
    }
    unanswered = ledger.keys() - committed - aborted
    for kind, names in {**violations, "unanswered_in_ledger": unanswered}.items():
        if names:
            print(f"{kind}: {sorted(names)}", file=sys.stderr)
    counts = {kind: len(names) for kind, names in violations.items()}
    print(json.dumps({**counts, "unanswered_in_ledger": len(unanswered), "committed": len(committed), "aborted": len(aborted)}))
    sys.exit(any(violations.values()))


if __name__ == "__main__":
    main()
