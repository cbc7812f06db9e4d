"""Objects of 20 kB from a server that takes 50 ms for each, by 256 threads.

The client written by hand is what a good programmer writes: 256 threads on a shared counter,
an ``http.client`` connection each, results to a queue, batches from it. No retries, no order,
no check that an object changed, no back-pressure.
"""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import urlsplit

import nogil_loader as nl
from benchmarks.harness import Plan, Row, Size, serve, time_passes
from benchmarks.slow_server import serving
from nogil_loader.cli._measure import Subject, this_python

THREADS, BATCH, SIZE, LATENCY = 256, 256, 20_000, 0.050
COLUMN = "256 threads"


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """The engine and the client by hand; the server runs while the plan is measured."""
    with serving(1_024 if size.quick else 4_096, SIZE, LATENCY) as addresses:
        listed = folder / "addresses"
        listed.write_text("\n".join(addresses))
        rows = []
        for variant in ("engine", "by hand"):
            question = {
                "variant": variant,
                "addresses": str(listed),
                "seconds": 3 * size.seconds,
            }
            subject = Subject(f"server, {variant}", this_python(), question, "benchmarks.server")
            rows.append(
                Row(variant, {COLUMN: subject}, ("by hand",) if variant == "engine" else ())
            )
        yield Plan(
            "server",
            f"Objects of {SIZE // 1000} kB, {LATENCY * 1000:.0f} ms each, batches of {BATCH}; the "
            "server is one more process on the same machine. In brackets: against by hand.",
            (COLUMN,),
            tuple(rows),
            ("rate", "cpu", "peak", "first"),
        )


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one of the two."""
    addresses = Path(str(question["addresses"])).read_text().splitlines()
    if question["variant"] == "engine":
        chain = nl.from_store(addresses, threads=THREADS).batch(BATCH)
        passes: Iterator[Iterator[object]] = chain.epochs(1_000_000_000)
    else:
        passes = (by_hand(addresses) for _ in itertools.count())
    return time_passes(passes, float(str(question["seconds"])), _rows)


def _rows(batch: object) -> int:
    return len(batch["bytes"] if isinstance(batch, dict) else batch)  # type: ignore[arg-type]


def by_hand(addresses: list[str]) -> Iterator[list[bytes]]:
    """One pass: every object once, as they come, in lists of 256."""
    counter, lock, done = iter(addresses), threading.Lock(), SimpleQueue[bytes]()
    host = urlsplit(addresses[0]).netloc

    def work() -> None:
        connection = http.client.HTTPConnection(host)
        while True:
            with lock:
                address = next(counter, None)
            if address is None:
                connection.close()
                return
            connection.request("GET", urlsplit(address).path)
            done.put(connection.getresponse().read())

    threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for start in range(0, len(addresses), BATCH):
        yield [done.get() for _ in range(min(BATCH, len(addresses) - start))]
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    serve(answer)
