"""The time of each part of a training step, plain and accelerated.

    python benchmarks/training_parts.py

32 pairs of 384x256, bfloat16, channels last, on a CUDA device. `--rehearse` runs everything once on
the CPU, with a tiny network in float32 and the kernels in Triton's interpreter: its times mean
nothing.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from dicl_flow.config import LevelConfig, LossConfig, ModelConfig, OptimizerConfig
from dicl_flow.models import LevelFlow, build
from dicl_flow.training import pyramid_loss
from dicl_flow.training.optimizer import build_optimizer

Work = Callable[[], object]
LAST = torch.channels_last
TINY = ModelConfig(levels=(LevelConfig(4, 1, ((8, 1),)), LevelConfig(2, 1, ((8, 1),))))


class Bench:
    """A model, a batch, and the parts of a step on it."""

    def __init__(
        self, model: nn.Module, batch: int, size: tuple[int, int], *, accelerated: bool
    ) -> None:
        self.accelerated = accelerated
        self.model, self.device = model, next(model.parameters()).device
        self.batch, self.size = batch, size
        self.images = [self.random(3, 1).clamp(-1, 1).contiguous(memory_format=LAST) for _ in "12"]
        self.truth = 5 * self.random(2, 1)
        self.valid = torch.ones_like(self.truth[:, 0], dtype=torch.bool)
        count = len(model.config.levels)
        self.weights = LossConfig(refined=(1.0,) * count, matched=(0.8,) * count)
        settings = OptimizerConfig("adamw", learning_rate=1e-3, weight_decay=1e-4)
        self.optimizer = build_optimizer(model, settings)

    def random(self, channels: int, stride: int) -> Tensor:
        """A map of the batch at `stride`: (B, channels, H/stride, W/stride)."""
        height, width = self.size
        shape = (self.batch, channels, height // stride, width // stride)
        return torch.randn(shape, device=self.device)

    def autocast(self) -> torch.autocast:
        """bfloat16 on a GPU, where training uses it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def features(self, stride: int) -> Tensor:
        """Features as the pyramid gives them, which require a gradient."""
        maps = self.random(self.model.config.feature_channels, stride).relu()
        maps = maps.bfloat16() if self.device.type == "cuda" else maps
        return maps.contiguous(memory_format=LAST).requires_grad_()

    def forward_backward(self, forward: Callable[[], list[Tensor]]) -> Work:
        """Run `forward`, then backward from all its outputs."""
        with torch.no_grad(), self.autocast():
            gradients = [torch.randn_like(output) for output in forward()]

        def work() -> None:
            with self.autocast():
                outputs = forward()
            torch.autograd.backward(outputs, gradients)

        return work

    def parts(self) -> Iterator[tuple[str, Callable[[], Work]]]:
        """The name of each part, and a function that prepares it."""
        yield "features", self.features_part
        for stride in self.model.levels:
            yield f"matching, stride {stride}", lambda stride=stride: self.matching_part(stride)
        yield "context nets", self.context_part
        yield "loss", self.loss_part
        yield "optimizer", self.optimizer_part
        yield "whole step", lambda: self.step

    def features_part(self) -> Work:
        """Both images through the feature pyramid."""
        net = self.model.features
        return self.forward_backward(lambda: [*net(self.images[0]), *net(self.images[1])])

    def matching_part(self, stride: str) -> Work:
        """The matcher of one level."""
        matcher = self.model.levels[stride].matcher
        maps = [self.features(int(stride)) for _ in "12"]
        return self.forward_backward(lambda: [matcher(*maps)])

    def context_part(self) -> Work:
        """The context nets of all levels."""
        inputs = [
            (level.context, self.random(2, int(s)), self.random(1, int(s)), self.features(int(s)))
            for s, level in self.model.levels.items()
        ]
        return self.forward_backward(
            lambda: [net(*known, self.images[0]) for net, *known in inputs]
        )

    def loss(self, flows: list[LevelFlow]) -> Tensor:
        """The pyramid loss of the batch."""
        known = (self.truth, self.valid, self.model.config.reach, self.weights)
        return pyramid_loss(flows, *known, accelerated=self.accelerated)

    def loss_part(self) -> Work:
        """The loss and its gradient for every level's flow."""
        flows = [
            LevelFlow(
                *(self.random(2, int(s)).requires_grad_() for _ in "12"), self.random(1, int(s))
            )
            for s in self.model.levels
        ]
        return lambda: self.loss(flows).backward()

    def optimizer_part(self) -> Work:
        """Clip and step, with given gradients."""
        gradients = [torch.randn_like(parameter) for parameter in self.model.parameters()]

        def work() -> None:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self.update()

        return work

    def update(self) -> None:
        """Clip, step and reset the gradients."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> None:
        """Forward, loss and backward."""
        with self.autocast():
            flows = self.model(*self.images)
        self.loss(flows).backward()

    def step(self) -> None:
        """One step of training."""
        self.gradients()
        self.update()

    def graphed(self) -> Work:
        """Forward, loss and backward of a step as one CUDA graph."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.gradients()
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.gradients()
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


def measure(prepare: Callable[[], Work], repeats: int) -> float | str:
    """Milliseconds, or the error: if one part fails, the others are still measured."""
    try:
        return milliseconds(prepare(), repeats)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def show(name: str, found: float | str, whole: float | str | None = None) -> None:
    if isinstance(found, str):
        print(f"  {name:<22} failed: {found}", flush=True)
        return
    share = f"{100 * found / whole:6.1f} %" if isinstance(whole, float) else ""
    print(f"  {name:<22}{found:9.2f} ms{share}", flush=True)


def report(title: str, bench: Bench, repeats: int) -> None:
    print(title, flush=True)
    started = time.perf_counter()
    first = measure(lambda: bench.step, 1)  # compiles the kernels, fills the caches
    print(f"  first steps took {time.perf_counter() - started:.1f} s", flush=True)
    if isinstance(first, str):
        show("whole step", first)
    found = {}
    for name, prepare in bench.parts():
        found[name] = measure(prepare, repeats)
        bench.optimizer.zero_grad(set_to_none=True)
    whole = found["whole step"]
    for name, value in found.items():
        show(name, value, whole)
    parts = [value for name, value in found.items() if name != "whole step"]
    if isinstance(whole, float) and not any(isinstance(value, str) for value in parts):
        show("rest (warps, softmax …)", whole - sum(parts), whole)
    if isinstance(whole, float):
        print(f"  {1000 * bench.batch / whole:.0f} pairs/s", flush=True)


def report_graph(bench: Bench, repeats: int) -> None:
    torch.cuda.reset_peak_memory_stats()
    found = measure(bench.graphed, repeats)
    show("graphed, no optimizer", found)
    if isinstance(found, float):
        print(f"  {1000 * bench.batch / found:.0f} pairs/s", flush=True)
    print(f"  {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most", flush=True)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="a tiny run on the CPU")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", default="384x256", help="WIDTHxHEIGHT of a crop")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--search", action="store_true", help="let cuDNN try its algorithms")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = arguments.search
    if arguments.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported, at the first use
        device, config, batch, size, repeats = "cpu", TINY, 1, (16, 16), 1
    else:
        device, config, batch = "cuda", ModelConfig(), arguments.batch
        width, height = map(int, arguments.size.split("x"))
        size, repeats = (height, width), arguments.repeats
        name = torch.cuda.get_device_name()
        print(f"{name}, torch {torch.__version__}, batch {batch}, {arguments.size}")
    plain = build(config).to(device).to(memory_format=LAST).train()
    from dicl_flow.accelerated.training import accelerate  # imports Triton

    accelerated = accelerate(copy.deepcopy(plain))
    for title, model in (("plain", plain), ("accelerated", accelerated)):
        bench = Bench(model, batch, size, accelerated=model is accelerated)
        report(title, bench, repeats)
        if device == "cuda":
            report_graph(bench, repeats)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
