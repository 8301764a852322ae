"""The matching net's first layer in training: the convolution of written pairs, and factored.

Also with batch norm and ReLU: behind the factored layer, and in one function with it.

    python benchmarks/first_layer.py

Forward and backward at each stride of frames of 1024x640, six pairs in bfloat16, on a CUDA device.
A quarter of the second map is empty, as after a warp that leaves the frame. `--rehearse` runs it
once on the CPU, on tiny maps in Triton's interpreter: its times mean nothing.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

CHANNELS, DEPTH = 96, 32
LAST = torch.channels_last
Layer = Callable[[Tensor, Tensor, Tensor, int], Tensor]
Work = Callable[[], object]


def convolved_pairs(features1: Tensor, features2: Tensor, weight: Tensor, radius: int) -> Tensor:
    """Write all pairs, then convolve them."""
    from dicl_flow.accelerated.first_layer.training import pair_windows

    return torch.nn.functional.conv2d(pair_windows(features1, features2, radius), weight, padding=1)


def with_norm(device: str) -> dict[str, Layer]:
    """The factored layer with batch norm and ReLU: in two functions, and in one."""
    from dicl_flow.accelerated.batch_norm import norm_relu
    from dicl_flow.accelerated.first_layer.training import pair_layer, pair_norm_relu

    norm = torch.nn.BatchNorm2d(CHANNELS, device=device)
    return {
        "then norm": lambda *layer: norm_relu(pair_layer(*layer), norm),
        "with norm": lambda *layer: pair_norm_relu(*layer, norm),
    }


def make(batch: int, size: tuple[int, int], device: str) -> list[Tensor]:
    """Two feature maps and a weight."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    maps = torch.randn(2, batch, DEPTH, *size, device=device).relu().to(dtype)
    maps[1, :, :, : size[0] // 8] = 0
    maps[1, :, :, :, : size[1] // 8] = 0
    weight = 0.05 * torch.randn(CHANNELS, 2 * DEPTH, 3, 3, device=device)
    inputs = [*(each.contiguous(memory_format=LAST) for each in maps), weight]
    return [tensor.requires_grad_() for tensor in inputs]


def recorded(work: Work) -> Work:
    """The same as one CUDA graph, as training runs it; on a CPU, unchanged."""
    if not torch.cuda.is_available():
        return work
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def milliseconds(work: Work, repeats: int) -> float:
    """The median over `repeats`, after warming up."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - start)
    events = []
    for _ in range(repeats + 2):
        events.append([torch.cuda.Event(enable_timing=True) for _ in "12"])
        events[-1][0].record()
        work()
        events[-1][1].record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events[2:])


def measure(layer: Layer, inputs: list[Tensor], radius: int, repeats: int) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward."""
    kind = inputs[0].device.type

    def forward() -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            return layer(*inputs, radius)

    gradient = torch.randn_like(forward())

    def both() -> object:
        return torch.autograd.grad(forward(), inputs, gradient)

    return milliseconds(recorded(forward), repeats), milliseconds(recorded(both), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="a tiny run on the CPU")
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--size", default="1024x640", help="WIDTHxHEIGHT of a frame")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    width, height = map(int, arguments.size.split("x"))
    device, batch, radius, strides = "cuda", arguments.batch, 3, (64, 32, 16, 8, 4)
    if arguments.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        device, batch, radius, strides, width, height = "cpu", 1, 1, (4,), 16, 16
    else:
        name = torch.cuda.get_device_name()
        print(f"{name}, torch {torch.__version__}, batch {batch}, {arguments.size}")
    from dicl_flow.accelerated.first_layer.training import pair_layer

    layers: dict[str, Layer] = {"pairs": convolved_pairs, "factored": pair_layer}
    layers |= with_norm(device)
    for stride in strides:
        inputs = make(batch, (height // stride, width // stride), device)
        for name, layer in layers.items():
            forward, both = measure(layer, inputs, radius, arguments.repeats)
            print(
                f"stride {stride:2d} {name:10s}{both:8.3f} ms: {forward:.3f} forward, "
                f"{both - forward:.3f} backward",
                flush=True,
            )


if __name__ == "__main__":
    main()
