#!/usr/bin/python3 -IS
"""A CGI script that answers with random bytes. The argument is their number. Each execution notes in the file beside this script what it
sends: the SHA-256 of the bytes, and the client's address and port."""
import hashlib
import os
import sys

body = os.urandom(int(os.environ["QUERY_STRING"]))
digest = hashlib.sha256(body).hexdigest()
note = f"{digest} {os.environ['REMOTE_ADDR']} {os.environ['REMOTE_PORT']} {os.environ.get('HTTP_STEADFAST_REEXECUTED', 'new')}\n"
notes = os.open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sent"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(notes, note.encode())
out = sys.stdout.buffer
out.write(f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\nX-Sha256: {digest}\r\n\r\n".encode())
# In pieces, so that a failure hits the middle of a reply.
for begin in range(0, len(body), 65536):
    out.write(body[begin : begin + 65536])
    out.flush()
