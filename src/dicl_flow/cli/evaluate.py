"""Commands that measure networks: their errors by `eval`, `submit`, `table2`; speed by `bench`."""

import json
import shlex
import sys
from collections.abc import Mapping
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ..errors import InputError, unknown_name
from . import options
from .inputs_outputs import (
    check_outputs,
    check_weights,
    encode_json,
    files_of,
    refuse_inputs,
)
from .options import Size, flag, optional, parse_size

if TYPE_CHECKING:
    import torch

    from ..data import FlowPair
    from ..evaluation import Evaluation

Numbers = Annotated[
    Path | None, Option("--output", "-o", metavar="JSON", help="Write all numbers to a file.")
]
Markdown = Annotated[Path | None, Option(help="Write the tables as Markdown.")]


class Evaluate(options.EstimateSettings):
    """Score a network on data sets, and compare it with the published numbers.

    EPE and EPE images, 1/3/5 px, Fl-all, WAUC, EPE by speed and by visibility, AUSE of the
    confidence; for Spring also 1 px by its regions. Pairs without truth are judged by warping,
    which is not an end-point error.

    Examples:
      dicl-flow eval --data sintel-clean=Sintel --data kitti15=KITTI --weights my.safetensors
      dicl-flow eval --data kitti15=KITTI --baseline dis --worst 10 pictures -o scores.json
      dicl-flow eval --data kitti15=KITTI --quality best
    """

    data: list[str] = Option(..., "--data", "-d", metavar="NAME=PATH", help="Data set; repeatable.")
    baseline: str | None = optional("Score this method as well; alone without -w: dis.")
    output: Numbers = None
    markdown: Markdown = None
    worst: tuple[int, Path] | None = optional(
        "Draw the N worst pairs of each method and data set.", metavar="N DIR"
    )
    sparsification: Path | None = optional("Draw how well confidence finds errors.", metavar="PNG")
    keep: Path | None = optional("Keep predictions: METHOD/DATA/PAIR.flo.", metavar="DIR")
    predictions: Path | None = optional("Score what --keep has written.", metavar="DIR")
    valid_only: bool = flag("--valid-only", "Omit what Sintel marks as invalid, unlike papers.")
    full_size: options.FullSize = False

    def __call__(self) -> None:
        from rich.console import Console

        from ..evaluation import draw_sparsification, print_results
        from ..files import write_files

        sets = self._check()
        scored = self._evaluate(sets)
        numbers, tables = scored.to_json().encode(), scored.to_markdown().encode()
        contents = _asked_for({self.output: numbers, self.markdown: tables})
        if self.sparsification is not None:
            contents[self.sparsification] = draw_sparsification(scored.results)
        write_files(contents)
        folders = filter(None, (self.keep, self.worst and self.worst[1]))
        if self.as_json:
            self.report({**scored.document(), "written": [*contents, *folders]})
        elif not self.quiet:
            print_results(scored.results, Console())
            for size, how in scored.computed.items():
                typer.echo(f"frames of {size} are computed {how}")

    def _check(self) -> "dict[str, list[FlowPair]]":
        """Refuse what cannot be scored or written; return the pairs of each data set."""
        from ..data import list_pairs, parse_data_argument
        from ..evaluation import BASELINES

        if self.baseline is not None and self.baseline not in BASELINES:
            raise unknown_name("baseline", self.baseline, BASELINES)
        if self.predictions is not None and (self.weights or self.baseline or self.keep):
            raise InputError(
                "--predictions estimates nothing; leave out --weights, --baseline, --keep"
            )
        wanted = check_outputs(
            [self.output, self.markdown],
            plots=[self.sparsification],
            folders=[self.keep, self.worst and self.worst[1]],
            inputs=[self.predictions, self.weights],
        )
        if self.sparsification and self.baseline and self.weights is None:
            raise InputError("--sparsification needs a confidence, and a baseline has none; add -w")
        sets: dict[str, list[FlowPair]] = {}
        for name, root in map(parse_data_argument, self.data):
            if name in sets:
                raise InputError(f"--data names {name} twice; evaluate one after the other")
            sets[name] = list_pairs(name, root)
        refuse_inputs(wanted, files_of(chain.from_iterable(sets.values())))
        return sets

    def _evaluate(self, sets: "dict[str, list[FlowPair]]") -> "Evaluation":
        from ..evaluation import evaluate, evaluate_predictions

        how = {**self.chosen("worst", "valid_only"), "progress": self.track}
        if self.predictions:
            return evaluate_predictions(sets, self.predictions, **how)
        networks = [self.weights] if self.weights or not self.baseline else []
        methods = [*networks, *([self.baseline] if self.baseline else [])]
        how |= self.chosen("keep", "quality", "full_size")
        return evaluate(sets, methods, **how, **self.compute)


def _asked_for(contents: Mapping[Path | None, bytes]) -> dict[Path, bytes]:
    return {path: content for path, content in contents.items() if path is not None}


class Submit(options.EstimateSettings):
    """Estimate the test frames of a benchmark and pack them for upload.

    KITTI's server takes the archive as it is. Unpack it for Sintel, and run the bundler that comes
    with the data set on the folders clean and final; for Spring, and run flow_subsampling on it.

    Example:
      dicl-flow submit kitti15 data_scene_flow -o kitti15.zip --weights my.safetensors
    """

    benchmark: str = Argument(..., help="sintel, kitti15, kitti12 or spring.")
    root: Path = Argument(..., help="The data set's folder, with its test frames.")
    output: Path = options.output("The .zip file to write.")

    def __call__(self) -> None:
        from ..evaluation import missing_pairs, predict, submission_entries, write_submission

        check_outputs([self.output], inputs=[self.weights], endings=[".zip"])
        entries = submission_entries(self.benchmark, self.root)
        check_weights(self.weights)
        missing = missing_pairs(self.benchmark, entries)
        if missing > 0 and not self.quiet:
            of_all = f"{missing:,} of the {missing + len(entries):,} test pairs are missing"
            typer.echo(f"warning: {of_all} in {self.root}; the server will refuse this", err=True)
        estimator = self.load()
        pairs = self.track(entries.values(), self.benchmark)
        predictions = predict(pairs, lambda *frames: estimator(*frames).flow)
        write_submission(self.output, entries, predictions)
        self.report({"written": [self.output], "files": len(entries)})


class Table2(options.ReadSettings):
    """Fill in the paper's table 2 with the weights of a chain, below the published rows.

    C+T is scored on KITTI-15 and Sintel after `things`, +K/S after `kitti` or `sintel` on that
    data set, in float32. What is missing stays empty and is named.

    Examples:
      dicl-flow table2 runs/reproduce --data kitti15=KITTI --data sintel-clean=Sintel
      dicl-flow table2 runs/a --without-projection runs/b --data kitti15=KITTI --markdown table2.md
    """

    chain: Path | None = Argument(None, metavar="CHAIN", help="Folder written by `reproduce`.")
    without_projection: Path | None = optional(
        "Folder written by `reproduce --without-projection`.", metavar="DIR"
    )
    data: options.Data = None
    output: Numbers = None
    markdown: Markdown = None
    device: options.Device = "auto"

    def __call__(self) -> None:
        from ..data import list_pairs, parse_data_argument
        from ..lab import paper_tables

        folders = {
            paper_tables.WITH_PROJECTION: self.chain,
            paper_tables.WITHOUT_PROJECTION: self.without_projection,
        }
        if not any(folders.values()):
            raise InputError("name the folder of a chain, such as runs/reproduce")
        wanted = check_outputs([self.output, self.markdown])
        known = paper_tables.STAGES["things"][1]
        sets: dict[str, list[FlowPair]] = {}
        for name, root in map(parse_data_argument, self.data or []):
            if name not in known:
                raise unknown_name("column of table 2", name, known)
            sets[name] = list_pairs(name, root, needs_truth=True)
        if not sets:
            raise InputError(f"--data names no data set; table 2 has {', '.join(known)}")
        refuse_inputs(wanted, files_of(chain.from_iterable(sets.values())))
        chains = {m: paper_tables.find_chain(m, folder) for m, folder in folders.items() if folder}
        used = [weights.path for stages in chains.values() for weights in stages.values()]
        refuse_inputs(wanted, used)

        from ..evaluation import grid_markdown
        from ..files import write_files

        table = paper_tables.measure_table(chains, sets, self.device, self.track)
        grids, document = table.grids(), table.document()
        tables = "\n\n".join(map(grid_markdown, grids)) + "\n"
        contents = _asked_for({self.output: encode_json(document), self.markdown: tables.encode()})
        write_files(contents)
        self.report_grids(document, contents, grids)


_SIZES = ["1024x436", "1242x375", "1920x1080", "3840x2160"]
_WIDTHS = (9, 5, 13, 7, 7, 5, 11, 7, 7, 7)  # of the columns
Measured = tuple[dict[str, Any], dict[Path, bytes]]
"""The numbers, and the files to write."""


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

        from .._version import __version__
        from ..estimation.compute import choose_device
        from ..files import write_files
        from ..lab.speed import describe_machine

        device = choose_device(self.device)
        measure = self._time_first if self.first else self._measure
        numbers, written = measure(device, sizes, repeats)
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
        if self.host is not None and self.weights is not None:
            raise InputError("--host times a network without weights; give --host or --weights")
        others = (self.host, self.paths, self.batches, self.plot, self.compiled, self.peers)
        if self.first and any(others):
            raise InputError(
                "--first takes --size, --weights, --quality, --device and --repeats only"
            )
        check_outputs([self.output], plots=[self.plot], inputs=[self.weights])
        default = ["512x256"] if self.quick else _SIZES[:1] if self.first else _SIZES
        sizes = [parse_size("--size", size) for size in self.sizes or default]
        check_weights(self.weights)
        return sizes, 3 if self.quick else self.repeats or (5 if self.first else 20)

    def _print(self, line: str) -> None:
        if not (self.quiet or self.as_json):
            typer.echo(line)

    def _measure(self, device: "torch.device", sizes: list[Size], repeats: int) -> Measured:
        """Print the speed of each case; draw the plot if it was asked for."""
        from ..config import find_quality
        from ..lab import speed

        batches = self.batches or ([1] if self.quick else [1, 8])
        quality = find_quality(self.quality)
        cases = [speed.Case(size.width, size.height, batches[0]) for size in sizes]
        cases += [speed.Case(sizes[0].width, sizes[0].height, batch) for batch in batches[1:]]
        model, given = speed.open_network(self.weights, quality, self.host)
        default = ["plain-fp32", "fast-fp32", "fast-auto"] if self.host is None else ["plain-fp32"]
        more = ["compiled-fp32", "compiled-auto"] if self.compiled else []
        paths, int8 = [*(self.paths or default), *more], bool(given.get("extremes"))
        ways = speed.choose_ways(paths, model.config, device, int8=int8)
        precisions = {precision: None for _, precision in ways}
        methods = speed.find_peers(device, precisions) if self.peers else []
        results, left_out = [], list[str]()
        how = (ways, repeats, given, methods, left_out.append)
        for result in speed.measure(model, device, cases, *how):
            results.append(result)
            heading = [] if len(results) > 1 else [speed.HEADINGS]
            for row in (*heading, speed.as_row(result)):
                self._print("  ".join(map(str.ljust, row, _WIDTHS)))
        notes = [f"left out: {reason}" for reason in left_out]
        names = dict.fromkeys(method.name for method in methods)  # one, several precisions
        legend = [speed.LEGEND, *(f"{name}: {speed.PEERS_LEGEND[name]}" for name in names)]
        self._print("\n".join(["", *notes, *legend]))
        numbers: dict[str, Any] = {"host": model.config.host, "quality": self.quality}
        numbers |= {"results": [*map(speed.as_record, results)]}
        numbers |= {"left_out": left_out} if left_out else {}
        return numbers, {} if self.plot is None else {self.plot: speed.encode_plot(results)}

    def _time_first(self, device: "torch.device", sizes: list[Size], repeats: int) -> Measured:
        """Print the seconds of the first result at each size."""
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
