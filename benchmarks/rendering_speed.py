"""The time of rendering alone, and the bytes that it moves, per size of a recipe.

    python benchmarks/rendering_speed.py PHOTOS                     # or: procedural
    python benchmarks/rendering_speed.py PHOTOS --detail            # bytes of each part as well

Prints for each size, with kernels (on a GPU) and without: the median milliseconds per batch, those
of the host, which launches the work, and what is read and written. Each operation counts its inputs
and outputs once, a look-up at most what it returns; a kernel is one operation.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from statistics import median
from time import perf_counter
from traceback import walk_stack

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from dicl_flow.data import FlowBatch
from dicl_flow.render import TextureAtlas, camera, load_textures, renderer, scene
from dicl_flow.training import Processes, read_recipe
from dicl_flow.training.batch_sources import SceneSource

FOLDER = str(Path(scene.__file__).parent)
KERNELS = ("compose_layers", "smear", "box_blur", "recolor")
LOOK_UPS = ("grid_sampler_2d", "grid_sampler_3d", "gather", "index")
WHOLE = ("render", "augment_batch", "photograph", "on_some")  # functions that are not a part


class Traffic(TorchDispatchMode):
    """Counts operations and the bytes that they read and write, by the function that calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.in_kernel = False

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **(keywords or {}))
        name = operation._schema.name.removeprefix("aten::")
        returned = operation._schema.returns
        view = returned and returned[0].alias_info and not returned[0].alias_info.is_write
        if name == "index_copy_":
            self.add(arguments[-1], arguments[-1], looks_up=False)
        elif not self.in_kernel and not view and not name.startswith(("empty", "new_empty")):
            self.add((arguments, keywords), result, looks_up=name in LOOK_UPS)
        return result

    def add(self, inputs: object, outputs: object, *, looks_up: bool) -> None:
        """Count one operation."""
        written = sum(map(size_in_bytes, tensors(outputs)))
        most = written if looks_up else float("inf")
        read = sum(min(most, size_in_bytes(tensor)) for tensor in tensors(inputs))
        self.bytes[part := calling_part()] += int(written + read)
        self.operations[part] += 1

    def watched(self, function):
        """Return a kernel that is counted as one operation."""

        @wraps(function)
        def counted(*arguments, **keywords):
            self.in_kernel = True
            result = function(*arguments, **keywords)
            self.in_kernel = False
            inputs = [
                part if isinstance(part, Tensor) else getattr(part, "__dict__", part)
                for part in arguments
            ]
            self.add(inputs, result, looks_up=True)
            return result

        return counted


def tensors(values: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_iter(values) if isinstance(leaf, Tensor))


def size_in_bytes(tensor: Tensor) -> int:
    """What a tensor occupies; expanded axes occupy nothing."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride else 1
    return size


def calling_part() -> str:
    """The outermost function of rendering that is a part of it."""
    here = [frame.f_code for frame, _ in walk_stack(None)]
    names = [code.co_name for code in here if code.co_filename.startswith(FOLDER)]
    return next((name for name in reversed(names) if name not in WHOLE), "rest")


def count_traffic(batches: Iterator[FlowBatch], device: torch.device) -> Traffic:
    """Count one batch."""
    traffic, originals = Traffic(), {}
    if scene.has_kernels(device):
        from dicl_flow.render import kernels  # imports Triton

        originals = {name: getattr(kernels, name) for name in KERNELS}
        for name, function in originals.items():
            setattr(kernels, name, traffic.watched(function))
    with traffic:
        next(batches)
    for name, function in originals.items():
        setattr(kernels, name, function)
    return traffic


def measure(
    batches: Iterator[FlowBatch], device: torch.device, repeats: int
) -> tuple[float, float]:
    """Median milliseconds until a batch is there, and until all of it is launched."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    whole, host = [], []
    for _ in range(repeats + 2):  # two to warm up
        wait()
        start = perf_counter()
        next(batches)
        host.append(1000 * (perf_counter() - start))
        wait()
        whole.append(1000 * (perf_counter() - start))
    return median(whole[2:]), median(host[2:])


def report(
    arguments: argparse.Namespace, textures: TextureAtlas, size: tuple[int, int], *, plain: bool
) -> None:
    device = torch.device(arguments.device)
    config = read_recipe(arguments.recipe, [f"render.sizes=[[{size[0]}, {size[1]}]]"])
    source = SceneSource(config, textures)
    has_kernels = scene.has_kernels
    for module in (camera, renderer) if plain else ():
        module.has_kernels = lambda device: False
    try:
        batches = source.batches(arguments.batch or config.batch, 0, Processes(device))
        pairs = len(next(batches).flow)
        whole, host = measure(batches, device, arguments.repeats)
        traffic = count_traffic(batches, device)
    finally:
        for module in (camera, renderer):
            module.has_kernels = has_kernels
    print(
        f"{size[1]}x{size[0]}, {pairs} pairs, {'plain' if plain else 'kernels'}: {whole:.2f} ms "
        f"(host {host:.2f}), {traffic.bytes.total() / 1e9:.2f} GB in "
        f"{traffic.operations.total()} operations",
        flush=True,
    )
    for part, amount in traffic.bytes.most_common() if arguments.detail else ():
        print(f"  {part:20} {amount / 1e9:7.3f} GB in {traffic.operations[part]} operations")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of photographs, or 'procedural'")
    parser.add_argument("--recipe", default="every-level")
    parser.add_argument("--batch", type=int, help="pairs of the recipe's crop; default: its own")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--detail", action="store_true", help="the bytes of each part")
    arguments = parser.parse_args()
    folder = None if arguments.photos == "procedural" else Path(arguments.photos)
    textures = load_textures(folder, arguments.device)
    config = read_recipe(arguments.recipe, [])
    paths = (False, True) if scene.has_kernels(torch.device(arguments.device)) else (True,)
    for size in dict.fromkeys(config.render.sizes or (config.augment.crop,)):
        for plain in paths:
            report(arguments, textures, size, plain=plain)


if __name__ == "__main__":
    main()
