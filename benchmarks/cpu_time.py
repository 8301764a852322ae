"""CPU time of an estimate: plain, accelerated in each precision, and OpenCV's DIS, alternating.

    python benchmarks/cpu_time.py FRAME1 FRAME2 [REPEATS]

CPU time is that of all threads, and also means something on a busy machine. With one thread
(`OMP_NUM_THREADS=1`) it does not count threads that wait for each other.
"""

import sys
from statistics import median
from time import perf_counter, process_time

import cv2
import numpy as np
import torch

import dicl_flow
from dicl_flow.evaluation.evaluate import dis
from dicl_flow.files import read_image

frames = [read_image(path) for path in sys.argv[1:3]]
repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 3
chosen = dicl_flow.load(device="cpu").precision
reduced = () if chosen == "fp32" else (chosen,)
ways = {f"fast {name}": dicl_flow.load(None, "cpu", name, "fast") for name in ("fp32", *reduced)}
ways = {"plain fp32": dicl_flow.load(None, "cpu", "fp32", "plain"), **ways}
calls = {name: lambda way=way: way(*frames).flow for name, way in ways.items()}
method = dis()
calls["OpenCV's DIS"] = lambda: method(*frames)
cv2.setNumThreads(torch.get_num_threads())

flows = {name: call() for name, call in calls.items()}  # the first call prepares
seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
for _ in range(repeats):
    for name, call in calls.items():
        start = process_time(), perf_counter()
        call()
        seconds[name].append((process_time() - start[0], perf_counter() - start[1]))

print("| path | CPU time, s: lowest, median | time, s: lowest | times plain | mean px from plain |")
print("|---|---|---|---|---|")
least = {name: min(busy for busy, _ in found) for name, found in seconds.items()}
for name, found in seconds.items():
    middle, wall = median(busy for busy, _ in found), min(wall for _, wall in found)
    distance = np.linalg.norm(flows[name] - flows["plain fp32"], axis=-1).mean()
    print(
        f"| {name} | {least[name]:.3g}, {middle:.3g} | {wall:.3g} | "
        f"{least['plain fp32'] / least[name]:.2g} | {distance:.2g} |"
    )
