"""`dicl-flow bench`: the speed of this machine."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import InputError
from . import options
from .inputs_outputs import check_outputs, check_weights
from .options import Size, flag, optional, parse_size

if TYPE_CHECKING:
    import torch

_SIZES = ["1024x436", "1242x375", "1920x1080", "3840x2160"]
_WIDTHS = (9, 5, 13, 7, 7, 5, 11, 7, 7, 7)  # of the columns


class Bench(options.Settings):
    """Time the plain and the accelerated network on this machine.

    Frames are computed at the size given, even where the weights would have them scaled down.
    Batches of several pairs are measured at the first size only.

    Examples:
      dicl-flow bench --quick
      dicl-flow bench --device cuda -o h200.json --plot h200.png
      dicl-flow bench --host vcn --size 1024x436 --batch 1
      dicl-flow bench --first --size 1024x436
    """

    sizes: list[str] | None = optional(
        f"WIDTHxHEIGHT; repeatable. Default: {', '.join(_SIZES)}.", "--size"
    )
    batches: list[int] | None = optional("Pairs at a time; default: 1, 8.", "--batch", min=1)
    paths: list[str] | None = optional(
        "BACKEND-PRECISION; default: plain-fp32, fast-fp32, fast-auto; with --host "
        "plain-fp32. Backends: plain, fast, compiled (torch.compile).",
        "--path",
    )
    compiled: bool = flag(
        "--compile",
        "Measure compiled-fp32 and compiled-auto as well: the plain network through "
        "torch.compile, which takes minutes for each size.",
    )
    peers: bool = flag(
        "--peers", "Time OpenCV's DIS as well, and torchvision's RAFT where it is installed."
    )
    first: bool = flag(
        "--first",
        "Time `dicl-flow flow` in fresh processes instead, part by part; on CUDA with an "
        "empty and with a full cache of kernels.",
    )
    repeats: int | None = optional(
        "Timed calls; the median counts. Default: 20, with --first 5.", min=1
    )
    quick: bool = flag("--quick", "One small size, batch 1, three timed calls.")
    weights: options.Weights = None
    quality: options.Quality = "normal"
    host: str | None = optional("Time a network with random weights: pwcnet, vcn, dicl.")
    device: options.Device = "auto"
    output: Path | None = options.output("JSON file to write.", None)
    plot: Path | None = optional("Draw time and memory by size.", metavar="PNG")

    def __call__(self) -> None:
        sizes, repeats = self._check()

        from ..estimation.compute import choose_device

        device = choose_device(self.device)
        measure = self._time_first if self.first else self._measure
        numbers, written = measure(device, sizes, repeats)

        from datetime import date

        from .._version import __version__
        from ..files import write_files
        from ..lab.timing import describe_machine

        report = {
            "command": shlex.join(["dicl-flow", *sys.argv[1:]]),
            "date": date.today().isoformat(),
            "dicl_flow": __version__,
            **describe_machine(device),
            **numbers,
        }
        if self.output is not None:
            written = {self.output: json.dumps(report, indent=1).encode(), **written}
        write_files(written)
        if self.as_json:
            self.report({**report, "written": [*written]})

    def _check(self) -> tuple[list[Size], int]:
        """Return the sizes to measure, and how often; refuse options that exclude each other."""
        from ..config import find_quality

        if self.host is not None and self.weights is not None:
            raise InputError("--host times a network without weights; give --host or --weights")
        others = (self.host, self.paths, self.batches, self.plot, self.compiled, self.peers)
        if self.first and any(others):
            raise InputError(
                "--first takes --size, --weights, --quality, --device and --repeats only"
            )
        find_quality(self.quality)
        check_outputs([self.output, self.plot], inputs=[self.weights])
        default = ["512x256"] if self.quick else _SIZES[:1] if self.first else _SIZES
        sizes = [parse_size("--size", size) for size in self.sizes or default]
        check_weights(self.weights)
        return sizes, 3 if self.quick else self.repeats or (5 if self.first else 20)

    def _print(self, line: str) -> None:
        if not (self.quiet or self.as_json):
            typer.echo(line)

    def _measure(
        self, device: "torch.device", sizes: list[Size], repeats: int
    ) -> tuple[dict[str, Any], dict[Path, bytes]]:
        """Print the speed of each case; return the numbers, and the plot if it was asked for."""
        from ..config import find_quality
        from ..lab import speed

        batches = self.batches or ([1] if self.quick else [1, 8])
        quality = find_quality(self.quality)
        cases = [speed.Case(size.width, size.height, batches[0]) for size in sizes]
        cases += [speed.Case(sizes[0].width, sizes[0].height, batch) for batch in batches[1:]]
        if self.host is None:
            model, calibration = speed.open_network(self.weights, quality)
        else:
            model, calibration = speed.random_network(self.host), None
        default = ["plain-fp32", "fast-fp32", "fast-auto"] if self.host is None else ["plain-fp32"]
        more = ["compiled-fp32", "compiled-auto"] if self.compiled else []
        ways = speed.choose_ways([*(self.paths or default), *more], model.config, device)
        precisions = {precision: None for _, precision in ways}
        methods = speed.find_peers(device, precisions) if self.peers else []
        results, left_out = [], list[str]()
        how = (ways, repeats, calibration, quality, methods, left_out.append)
        for result in speed.measure(model, device, cases, *how):
            results.append(result)
            rows = speed.as_rows([result])
            for row in [speed.HEADINGS, *rows] if len(results) == 1 else rows:
                self._print("  ".join(map(str.ljust, row, _WIDTHS)))
        notes = [f"left out: {reason}" for reason in left_out]
        names = dict.fromkeys(method.name for method in methods)  # one, several precisions
        legend = [speed.LEGEND, *(f"{name}: {speed.PEERS_LEGEND[name]}" for name in names)]
        self._print("\n".join(["", *notes, *legend]))
        numbers: dict[str, Any] = {"host": model.config.host, "quality": self.quality}
        numbers |= {"results": [*map(speed.as_record, results)]}
        numbers |= {"left_out": left_out} if left_out else {}
        return numbers, {} if self.plot is None else {self.plot: speed.encode_plot(results)}

    def _time_first(
        self, device: "torch.device", sizes: list[Size], repeats: int
    ) -> tuple[dict[str, Any], dict[Path, bytes]]:
        """Print the seconds of the first result at each size; return the numbers."""
        from ..lab.speed import FIRST_COLUMNS, FIRST_LEGEND, Case, measure_first

        command = [sys.executable, "-m", "dicl_flow", "flow", "--json", "--device", str(device)]
        command += ["--quality", self.quality]
        command += ["--weights", self.weights] if self.weights else []
        rows = []
        heads = ("size", "cache", *(column.replace("_", " ") for column in FIRST_COLUMNS))
        self._print("  ".join(f"{head:>8}" for head in heads))
        for size in sizes:
            case = Case(size.width, size.height)
            for cache, seconds in measure_first(case, device, command, repeats):
                rows.append({"width": size.width, "height": size.height, "cache": cache, **seconds})
                cells = (str(size), cache, *(f"{s:.2f}" for s in seconds.values()))
                self._print("  ".join(f"{cell:>8}" for cell in cells))
        self._print(f"\n{FIRST_LEGEND}")
        return {"quality": self.quality, "first": rows}, {}
