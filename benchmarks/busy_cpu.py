"""Time of an estimate by the Python API next to programs that keep cores busy.

    python benchmarks/busy_cpu.py [--size 512x256] [--repeats 5] [--busy 0 1]

Processes that differ in how torch's threads wait take turns, so that whatever else runs on the
machine slows all of them: OpenMP's default, as a program has it that imports torch first; the
setting of `import dicl_flow`; a single thread.
"""

import argparse
import subprocess
import sys
from statistics import median
from time import perf_counter, process_time

WAYS = {
    "OpenMP's default": "import torch",
    "import dicl_flow first": "import dicl_flow",
    "one thread": "import torch; torch.set_num_threads(1)",
}

BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def work(width: int, height: int) -> None:
    """Estimate a pair for each line of the input; print its seconds, and those of all cores."""
    import numpy as np

    import dicl_flow

    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    pair, estimator = (noise, np.roll(noise, 3, 1)), dicl_flow.load(device="cpu")
    estimator(*pair)  # the first call prepares
    print("ready", flush=True)
    for _ in sys.stdin:
        start = perf_counter(), process_time()
        estimator(*pair)
        print(perf_counter() - start[0], process_time() - start[1], flush=True)


def start_worker(first: str, size: str) -> subprocess.Popen[str]:
    """Start a process that begins with a line of Python; return it when it is ready."""
    width, height = size.split("x")
    code = f"{first}; from benchmarks.busy_cpu import work; work({width}, {height})"
    words = [sys.executable, "-c", code]
    worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        raise SystemExit("run it in the root of the repository, with the package installed")
    return worker


def ask(worker: subprocess.Popen[str]) -> list[float]:
    """Let a worker estimate its pair once."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(file=worker.stdin, flush=True)
    return [float(word) for word in worker.stdout.readline().split()]


def main(size: str, repeats: int, busy: list[int]) -> None:
    """Print the medians as a table."""
    workers = {way: start_worker(first, size) for way, first in WAYS.items()}
    print("| busy programs | way | s | CPU time, s |\n|---|---|---|---|")
    try:
        for number in busy:
            burning = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(number)]
            try:
                asked = range(repeats)
                turns = [{way: ask(worker) for way, worker in workers.items()} for _ in asked]
            finally:
                for program in burning:
                    program.kill()
            for way in WAYS:
                wall, cpu = (median(turn[way][i] for turn in turns) for i in (0, 1))
                print(f"| {number} | {way} | {wall:.3g} | {cpu:.3g} |", flush=True)
    finally:
        for worker in workers.values():
            worker.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="512x256", help="WIDTHxHEIGHT of the frames")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="numbers of programs")
    main(**vars(parser.parse_args()))
