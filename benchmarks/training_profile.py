"""Where the time of a training step goes: its operations, launched one by one.

    python benchmarks/training_profile.py PHOTOS [--size 1024x640] [--set KEY=VALUE]

Profiles forward, loss and backward of one batch of `every-level` with torch's profiler, then the
optimizer and the rendering of a batch; prints what takes longest on the device, by the shapes of
its inputs. In a run all of it is one CUDA graph, and rendering takes place at the same time.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from dicl_flow.training import Processes, Trainer, open_source, read_recipe


def show(name: str, work: Callable[[], object], rows: int) -> None:
    on_device = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + on_device]
    with profile(activities=kinds, record_shapes=True) as found:
        work()
        if on_device:
            torch.cuda.synchronize()
    key = "self_device_time_total" if on_device else "self_cpu_time_total"
    events = [
        (getattr(event, key) / 1000, event)
        for event in found.key_averages(group_by_input_shape=True)
        if event.device_type == DeviceType.CPU
    ]
    print(f"{name}: {sum(time for time, _ in events):.2f} ms")
    for time, event in sorted(events, key=lambda event: -event[0])[:rows]:
        shapes = " ".join("x".join(map(str, shape)) for shape in event.input_shapes if shape)
        print(f"{time:9.3f} ms {event.count:5d} times  {event.key:<32} {shapes[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--size", default="1024x640", help="WIDTHxHEIGHT")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the recipe")
    parser.add_argument("--rows", type=int, default=40)
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    changes = [f"render.sizes=[[{height}, {width}]]", *arguments.set]
    config = read_recipe("every-level", changes)
    processes = Processes(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    source = open_source(config, {"rendered": arguments.photos})
    batches, trainer = source.batches(config.batch, 0, processes), Trainer(config, processes)
    trainer._training_mode()
    batch = next(batches).to(processes.device)

    def gradients() -> None:
        trainer.model.zero_grad(set_to_none=True)
        trainer._backward(batch)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()

    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        for _ in range(2):  # compile, choose, allocate
            gradients()
        show("forward, loss and backward", gradients, arguments.rows)
        show("clipping and optimizer", update, 5)
        show("rendering", lambda: next(batches), 5)


if __name__ == "__main__":
    main()
