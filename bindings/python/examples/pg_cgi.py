#!/usr/bin/env python3
"""pg_cgi.py: a CGI script that executes one transaction in PostgreSQL, for pg_front_end.py --cgi.

Its query has the client, the item and the amount. It prints the outcome: "committed" or "aborted". It commits only after the front-end has
exported its state. If the front-end fails before, the script rolls the transaction back.
"""

import os
import sys
import urllib.parse

import psycopg2

import steadfast_pg
from pg_front_end import execute_transaction


def main():
    query = dict(urllib.parse.parse_qsl(os.environ["QUERY_STRING"], strict_parsing=True))
    transaction = query["client"], query["item"], int(query["amount"])
    try:
        db = steadfast_pg.child_db(os.environ["DSN"])
        outcome = execute_transaction(db, steadfast_pg.parent(), str.encode, transaction)
    except steadfast_pg.ParentGone:
        sys.exit("the front-end has failed; the transaction is rolled back")
    except psycopg2.Error as error:
        sys.exit(f"the connection to the database is lost: {error}")  # the front-end asks for the outcome
    print(f"Content-Type: text/plain\n\n{outcome}", end="")


if __name__ == "__main__":
    main()
