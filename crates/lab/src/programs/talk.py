"""A WebSocket client: sends COUNT messages one after the other on one connection, and ends well only if each comes back.
Usage: talk.py URI COUNT

Prints a line for each. It never connects a second time.
"""

import asyncio
import random
import sys

import websockets

# All three forms of a frame's length (RFC 6455 section 5.2), and more than a segment and a buffer hold.
SIZES = (1, 125, 126, 5_000, 65_535, 65_536, 100_000)


def message(number):
    data = random.Random(number).randbytes(SIZES[number % len(SIZES)])
    return f"{number} {data.hex()}" if number % 2 else b"%d " % number + data


async def talk(uri, count):
    async with websockets.connect(uri, ping_interval=None) as connection:
        for number in range(count):
            await connection.send(message(number))
            if await connection.recv() != message(number):
                sys.exit(f"message {number} came back as another one")
            print(number, flush=True)


asyncio.run(talk(sys.argv[1], int(sys.argv[2])))
