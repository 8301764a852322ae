"""`dicl-flow bench`: the speed of this machine."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Option

from ..errors import InputError
from . import options
from .inputs_outputs import check_outputs, check_weights
from .printing import Size, parse_size

if TYPE_CHECKING:
    import torch

    from ..lab.speed import Result

_SIZES = ["1024x436", "1242x375", "1920x1080", "3840x2160"]


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

    sizes: list[str] | None = Option(
        None, "--size", help=f"WIDTHxHEIGHT; repeatable. Default: {', '.join(_SIZES)}."
    )
    batches: list[int] | None = Option(
        None, "--batch", min=1, help="Pairs at a time; default: 1 and 8."
    )
    paths: list[str] | None = Option(
        None,
        "--path",
        help="BACKEND-PRECISION; default: plain-fp32, fast-fp32, fast-auto; with --host "
        "plain-fp32. Backends: plain, fast, compiled (torch.compile).",
    )
    compiled: bool = Option(
        False,
        "--compile",
        help="Measure compiled-fp32 and compiled-auto as well: the plain network through "
        "torch.compile, which takes minutes for each size.",
    )
    peers: bool = Option(
        False,
        "--peers",
        help="Time OpenCV's DIS as well, and torchvision's RAFT where it is installed.",
    )
    first: bool = Option(
        False,
        "--first",
        help="Time `dicl-flow flow` in fresh processes instead, part by part; on CUDA with an "
        "empty and with a full cache of kernels.",
    )
    repeats: int | None = Option(
        None, min=1, help="Timed calls; the median counts. Default: 20, with --first 5."
    )
    quick: bool = Option(False, "--quick", help="One small size, batch 1, three timed calls.")
    weights: options.Weights = None
    quality: options.Quality = "normal"
    host: str | None = Option(
        None, help="Time this network with random weights: pwcnet, vcn or dicl."
    )
    device: options.Device = "auto"
    output: Path | None = Option(None, "--output", "-o", help="JSON file to write.")
    plot: Path | None = Option(None, metavar="PNG", help="Draw time and memory by size.")

    def __call__(self) -> None:
        sizes, repeats = self._check()

        from ..estimation.compute import choose_device

        device = choose_device(self.device)
        measure = self._time_first if self.first else self._measure
        found, written = measure(device, sizes, repeats)

        from datetime import date

        from .._version import __version__
        from ..files import write_files
        from ..lab.speed import describe_machine

        report = {
            "command": shlex.join(["dicl-flow", *sys.argv[1:]]),
            "date": date.today().isoformat(),
            "dicl_flow": __version__,
            **describe_machine(device),
            **found,
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
        check_weights([self.weights])
        return sizes, 3 if self.quick else self.repeats or (5 if self.first else 20)

    @property
    def _shown(self) -> bool:
        return not (self.quiet or self.as_json)

    def _measure(
        self, device: "torch.device", sizes: list[Size], repeats: int
    ) -> tuple[dict[str, Any], dict[Path, bytes]]:
        """Print the speed of each case; return the numbers, and the plot if it was asked for."""
        from ..config import find_quality
        from ..lab.speed import (
            LEGEND,
            PEERS_LEGEND,
            Case,
            as_record,
            choose_ways,
            encode_plot,
            find_peers,
            measure,
            open_network,
        )

        batches = self.batches or ([1] if self.quick else [1, 8])
        quality = find_quality(self.quality)
        cases = [Case(size.width, size.height, batches[0]) for size in sizes]
        cases += [Case(sizes[0].width, sizes[0].height, batch) for batch in batches[1:]]
        model, calibration = open_network(self.weights, quality, self.host)
        default = ["plain-fp32", "fast-fp32", "fast-auto"] if self.host is None else ["plain-fp32"]
        more = ["compiled-fp32", "compiled-auto"] if self.compiled else []
        ways = choose_ways([*(self.paths or default), *more], model.config, device)
        precisions = {precision: None for _, precision in ways}
        methods = find_peers(device, precisions) if self.peers else []
        results, left_out = [], list[str]()
        how = (ways, repeats, calibration, quality, methods, left_out.append)
        for result in measure(model, device, cases, *how):
            results.append(result)
            if self._shown:
                _print_row(result, first=len(results) == 1)
        if self._shown:
            notes = [f"left out: {reason}" for reason in left_out]
            names = dict.fromkeys(method.name for method in methods)  # one, several precisions
            legend = [LEGEND, *(f"{name}: {PEERS_LEGEND[name]}" for name in names)]
            typer.echo("\n".join(["", *notes, *legend]))
        found: dict[str, Any] = {"host": model.config.host, "quality": self.quality}
        found |= {"results": [*map(as_record, results)]}
        found |= {"left_out": left_out} if left_out else {}
        pictures = {} if self.plot is None else {self.plot: encode_plot(results)}
        return found, pictures

    def _time_first(
        self, device: "torch.device", sizes: list[Size], repeats: int
    ) -> tuple[dict[str, Any], dict[Path, bytes]]:
        """Print the seconds of the first result at each size; return the numbers."""
        from ..lab.speed import FIRST_COLUMNS, FIRST_LEGEND, Case, measure_first

        command = [sys.executable, "-m", "dicl_flow", "flow", "--json", "--device", str(device)]
        command += ["--quality", self.quality]
        command += ["--weights", self.weights] if self.weights else []
        rows = []
        if self._shown:
            heads = ("size", "cache", *(column.replace("_", " ") for column in FIRST_COLUMNS))
            typer.echo("  ".join(f"{head:>8}" for head in heads))
        for size in sizes:
            case = Case(size.width, size.height)
            for cache, seconds in measure_first(case, device, command, repeats):
                rows.append({"width": size.width, "height": size.height, "cache": cache, **seconds})
                cells = (str(size), cache, *(f"{s:.2f}" for s in seconds.values()))
                if self._shown:
                    typer.echo("  ".join(f"{cell:>8}" for cell in cells))
        if self._shown:
            typer.echo(f"\n{FIRST_LEGEND}")
        return {"quality": self.quality, "first": rows}, {}


def _print_row(result: "Result", *, first: bool) -> None:
    from ..lab.speed import HEADINGS, as_row

    widths = (9, 5, 13, 7, 7, 5, 11, 7, 7, 7)
    for cells in [HEADINGS, as_row(result)] if first else [as_row(result)]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
