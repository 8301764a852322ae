"""The command `data bench`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options


def bench(
    name: Annotated[str, typer.Argument(help="Data set: chairs, sintel-clean, kitti15, pairs …")],
    root: Annotated[Path, typer.Argument(help="Its folder.")],
    crop: Annotated[str, typer.Option(help="WIDTHxHEIGHT of a sample.")] = "384x256",
    batch: Annotated[int, typer.Option(min=1, help="Pairs in a batch.")] = 8,
    workers: Annotated[
        int, typer.Option(min=0, help="Loader processes, at most one per core; 0: none.")
    ] = 2,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 10.0,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure how many pairs per second can be fed to training, and what limits it.

    The loader is measured with its workers, then each stage alone on one core. Files that the
    system has cached are read faster than from the disk.

    Example:

      dicl-flow data bench chairs FlyingChairs_release --workers 8
    """
    from ..config import AugmentConfig
    from ..data import FlowDataset, list_pairs

    size = options.parse_size("--crop", crop)
    config = AugmentConfig(size)
    pairs = list_pairs(name, root, needs_truth=True)  # before torch is imported

    from ..data.loader import usable_workers, use_one_core
    from ..lab.data_sets import measure_loader, measure_stages

    workers = usable_workers(workers)
    speed = measure_loader(FlowDataset(pairs, config, 0), batch, workers, seconds)
    use_one_core()
    stages = measure_stages(pairs, config, batch, seconds)
    slowest, total = max(stages, key=stages.__getitem__), sum(stages.values())
    summary = {
        "pairs": len(pairs),
        "crop": size,
        "batch": batch,
        "workers": workers,
        "pairs_per_second": speed,
        **{f"{stage}_ms": milliseconds for stage, milliseconds in stages.items()},
        "bottleneck": slowest,
        "bottleneck_share": stages[slowest] / total,
    }
    options.report(summary, quiet=quiet, as_json=as_json)
