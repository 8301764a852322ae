"""Seconds to the first flow of the explorer and of `dicl-flow flow`; milliseconds of a click.

    python benchmarks/explorer_speed.py [-w WEIGHTS] [-n CLICKS]

Starts `dicl-flow explore` on the packaged demo and asks it over loopback, as the page does. Flows
are timed from the start of the command; a click asks for the beliefs about a pixel.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import tempfile
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

from dicl_flow.data import demo_pairs
from dicl_flow.files import read_image

PAIR = "/explore/clips/0/0"
COMMAND = [sys.executable, "-m", "dicl_flow"]
EXPLORE = [*COMMAND, "explore", "--port", "0", "--no-browser", "--json"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-w", "--weights")
    parser.add_argument("-n", "--clicks", type=int, default=150)
    options = parser.parse_args()
    pair = demo_pairs()[0]
    height, width = read_image(pair.image1).shape[:2]
    weights = ["-w", options.weights] if options.weights else []
    start = perf_counter()
    with subprocess.Popen([*EXPLORE, *weights], stdout=subprocess.PIPE, text=True) as command:
        try:
            about = json.loads(command.stdout.readline())
            connection = http.client.HTTPConnection(urlsplit(about["address"]).netloc)
            ask(connection, f"{PAIR}/estimate")
            first = perf_counter() - start
            times = [click(connection, width, height) for _ in range(options.clicks)]
        finally:
            command.terminate()
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        output = ["-o", f"{folder}/flow.flo", "--quiet"]
        subprocess.run([*COMMAND, "flow", pair.image1, pair.image2, *output, *weights], check=True)
        alone = perf_counter() - start
    print(f"{width}x{height}, {about['device']}: first flow {first:.2f} s, `flow` {alone:.2f} s")
    print(f"{len(times)} clicks: median {median(times):.1f} ms, at most {max(times):.1f} ms")


def ask(connection, path):
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != http.client.OK:
        raise SystemExit(f"{path}: {body.decode()}")
    return body


def click(connection, width, height):
    """Milliseconds until the beliefs about a random pixel are there."""
    x, y = random.randrange(width), random.randrange(height)
    start = perf_counter()
    ask(connection, f"{PAIR}/beliefs?x={x}&y={y}")
    return 1000 * (perf_counter() - start)


if __name__ == "__main__":
    main()
