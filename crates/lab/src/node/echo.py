"""A WebSocket server at all addresses of both families: says each message back. Usage: echo.py PORT

It sends no pings of its own: what a server says when its clock tells it to, its replica says elsewhere.
"""

import asyncio
import sys

import websockets


async def echo(connection):
    async for message in connection:
        await connection.send(message)


async def main(port):
    async with websockets.serve(echo, None, port, ping_interval=None):
        await asyncio.Future()


asyncio.run(main(int(sys.argv[1])))
