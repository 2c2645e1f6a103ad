"""Measures the server with 100 clients at once, and with honest clients beside hostile ones.

    python -m benchmarks.serving --workdir=runs/folder_baseline [--minutes=10]

Starts `dml-jax serve` and measures the latency of honest clients, which post an image and pause in turn: four alone,
100 at once, then four beside clients that send headers or bodies byte by byte, too much, noise, large images, half a
request, or nothing at all. Resets are connections that end without an answer. The hostile clients run in a process of
their own; all share the processors with the server.
"""

import argparse
import asyncio
import io
import json
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

HONEST, PAUSE = 4, 0.2  # clients; seconds
SLOW = 50  # clients of each slow kind
QUIET_SECONDS = 30.0
BODY = 40 << 20  # bytes, more than the server accepts

Address = tuple[str, int]


def image(width: int, height: int, kind: str) -> bytes:
    """An image file of smooth noise."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height)).save(file, kind)
    return file.getvalue()


def head(length: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % length


async def post(address: Address, body: bytes, length: int | None = None) -> int:
    """Posts a body, announced as `length` bytes; returns the status of the answer, 0 after a reset."""
    try:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(head(len(body) if length is None else length) + body)
            await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()
        return int(answer.split(b" ", 2)[1]) if b"\r\n\r\n" in answer else 0
    except OSError:
        return 0


async def drip(address: Address, start: bytes) -> None:
    """Sends the start of a request, then a byte per second until the server ends the connection."""
    _, writer = await asyncio.open_connection(*address)
    try:
        writer.write(start)
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(1)
    finally:
        writer.close()


async def silence(address: Address) -> None:
    reader, writer = await asyncio.open_connection(*address)
    await reader.read()
    writer.close()


async def hang_up(address: Address) -> None:
    """Ends the connection in the middle of the body."""
    _, writer = await asyncio.open_connection(*address)
    writer.write(head(100_000) + bytes(random.randrange(50_000)))
    await writer.drain()
    writer.transport.abort()


def attack(address: Address) -> None:
    """Runs the hostile clients until the process is ended."""
    whole, large = image(640, 480, "JPEG"), image(4000, 3000, "JPEG")

    async def repeat(pause: float, action: Callable[[], Awaitable[object]]) -> None:
        while True:
            with suppress(OSError):
                await action()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    async def run() -> None:
        unfinished = b"POST / HTTP/1.1\r\nHost: x\r\nX: "
        slow = (lambda: drip(address, unfinished), lambda: drip(address, head(10**6)), lambda: silence(address))
        once = (  # seconds between two, what is sent
            (2.0, lambda: post(address, bytes(BODY))),
            (0.2, lambda: post(address, random.randbytes(20_000))),
            (0.2, lambda: post(address, whole[: len(whole) // 2])),
            (0.2, lambda: hang_up(address)),
            (5.0, lambda: post(address, large)),
            (0.2, lambda: post(address, b"", 10**12)),
        )
        async with asyncio.TaskGroup() as group:
            for action in slow * SLOW:
                group.create_task(repeat(1.0, action))
            for pause, action in once:
                group.create_task(repeat(pause, action))

    asyncio.run(run())


async def honest(address: Address, body: bytes, seconds: float, clients: int = HONEST) -> tuple[list[float], int]:
    """Latencies in seconds of successful requests, and the number of all other outcomes."""
    latencies: list[float] = []
    failures = 0
    end = time.monotonic() + seconds

    async def client() -> None:
        nonlocal failures
        while True:
            start = time.perf_counter()
            if await post(address, body) == 200:
                latencies.append(time.perf_counter() - start)
            else:
                failures += 1
            if time.monotonic() > end:
                return
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))

    await asyncio.gather(*(client() for _ in range(clients)))
    return latencies, failures


def print_row(case: str, latencies: list[float], failures: int, server: psutil.Process) -> None:
    median, tail, worst = (1e3 * np.quantile(latencies, q) for q in (0.5, 0.95, 1.0))
    memory = server.memory_info().rss / 2**20
    cells = (case, len(latencies), failures, f"{median:.0f}", f"{tail:.0f}", f"{worst:.0f}", f"{memory:.0f}")
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def measure(address: Address, server: psutil.Process, body: bytes, minutes: int) -> None:
    """Prints the table, row by row."""
    print("| case | answers | resets and errors | median, ms | 95 %, ms | worst, ms | memory, MiB |")
    print("|---|---|---|---|---|---|---|")
    print_row(f"{HONEST} clients, quiet", *asyncio.run(honest(address, body, QUIET_SECONDS)), server)
    print_row("100 clients at once, once each", *asyncio.run(honest(address, body, 0, clients=100)), server)
    hostile = multiprocessing.get_context("spawn").Process(target=attack, args=(address,), daemon=True)
    hostile.start()
    for minute in range(minutes):
        print_row(f"under attack, minute {minute + 1}", *asyncio.run(honest(address, body, 60)), server)
    hostile.terminate()
    print_row(f"{HONEST} clients, quiet again", *asyncio.run(honest(address, body, QUIET_SECONDS)), server)


def main() -> None:
    """Starts the server and measures it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--minutes", type=int, default=10)
    options = parser.parse_args()
    facts = json.loads((options.workdir / "config.json").read_text())
    height, width = facts["shape"] if facts["config"]["data"]["crop"] == "none" else (480, 640)
    body = image(width, height, "JPEG")
    command = [sys.executable, "-m", "dml_jax", "serve", f"--workdir={options.workdir}", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            host, _, port = process.stdout.readline().strip().removeprefix("http://").rstrip("/").rpartition(":")
            measure((host, int(port)), psutil.Process(process.pid), body, options.minutes)
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
