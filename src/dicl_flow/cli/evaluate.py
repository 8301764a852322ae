"""Commands that score networks: `eval`, `submit` and `table2`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ..errors import InputError, unknown_name
from . import options
from .inputs_outputs import check_outputs, check_weights, files_of, refuse_inputs
from .printing import parse_size

if TYPE_CHECKING:
    from ..data import FlowPair
    from ..evaluation import Evaluation

Numbers = Annotated[
    Path | None, Option("--output", "-o", metavar="JSON", help="Write all numbers to a file.")
]
Markdown = Annotated[Path | None, Option(help="Write the tables as Markdown.")]


class Evaluate(options.ComputeSettings):
    """Score a network on data sets, and compare it with the published numbers.

    EPE and EPE images, 1/3/5 px, Fl-all, WAUC, EPE by speed and by visibility, AUSE of the
    confidence. Pairs without truth are judged by warping, which is not an end-point error.

    Examples:

      dicl-flow eval --data sintel-clean=Sintel --data kitti15=KITTI --weights my.safetensors

      dicl-flow eval --data kitti15=KITTI --baseline dis --worst 10 pictures -o scores.json

      dicl-flow eval --data kitti15=KITTI --quality best
    """

    data: list[str] = Option(..., "--data", "-d", metavar="NAME=PATH", help="Data set; repeatable.")
    weights: options.Weights = None
    baseline: str | None = Option(
        None, help="Also score this method; alone without --weights: dis."
    )
    output: Numbers = None
    markdown: Markdown = None
    worst: tuple[int, Path] | None = Option(
        None, metavar="N DIR", help="Draw the N worst pairs of each method and data set."
    )
    sparsification: Path | None = Option(
        None, metavar="PNG", help="Draw how well the confidence finds errors."
    )
    keep: Path | None = Option(None, metavar="DIR", help="Keep predictions: METHOD/DATA/PAIR.flo.")
    predictions: Path | None = Option(None, metavar="DIR", help="Score what --keep has written.")
    valid_only: bool = Option(
        False, "--valid-only", help="Leave out what Sintel marks as invalid, unlike papers."
    )
    full_size: options.FullSize = False
    quality: options.Quality = "normal"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..evaluation import draw_sparsification
        from ..files import write_files

        sets = self._check()
        found = self._evaluate(sets)
        contents = _encode({self.output: found.to_json(), self.markdown: found.to_markdown()})
        if self.sparsification is not None:
            contents[self.sparsification] = draw_sparsification(found.results)
        write_files(contents)
        folders = [path for path in (self.keep, self._pictures) if path is not None]
        self._print(found, [*contents, *folders])

    @property
    def _pictures(self) -> Path | None:
        return None if self.worst is None else self.worst[1]

    def _check(self) -> "dict[str, list[FlowPair]]":
        """Refuse what cannot be scored or written; return the pairs of each data set."""
        from ..evaluation import BASELINES

        if self.baseline is not None and self.baseline not in BASELINES:
            raise unknown_name("baseline", self.baseline, BASELINES)
        if self.predictions is not None and (self.weights or self.baseline or self.keep):
            raise InputError(
                "--predictions estimates nothing; leave out --weights, --baseline, --keep"
            )
        if self.worst is not None and self.worst[0] < 1:
            raise InputError(
                f"--worst takes a number of pairs from 1 up and a folder, got {self.worst[0]}"
            )
        wanted = check_outputs(
            [self.output, self.markdown, self.sparsification],
            folders=[self.keep, self._pictures],
            inputs=[self.predictions, self.weights],
        )
        if self.sparsification is not None:
            self._check_plot(self.sparsification)
        sets = _list_data(self.data)
        refuse_inputs(wanted, _files_of(sets))
        return sets

    def _check_plot(self, path: Path) -> None:
        from ..pictures.figures import draw_figure

        draw_figure(1, 1)  # complain now if there is no matplotlib
        if path.suffix.lower() != ".png":
            raise InputError(f"{path}: the curves are drawn as .png")
        if self.baseline is not None and self.weights is None:
            raise InputError("--sparsification needs a confidence, and a baseline has none; add -w")

    def _evaluate(self, sets: "dict[str, list[FlowPair]]") -> "Evaluation":
        from ..evaluation import evaluate, evaluate_predictions

        how: dict[str, Any] = {
            "worst": self.worst,
            "valid_only": self.valid_only,
            "progress": self.track,
        }
        if self.predictions:
            return evaluate_predictions(sets, self.predictions, **how)
        networks = [self.weights] if self.weights or not self.baseline else []
        return evaluate(
            sets,
            [*networks, *([self.baseline] if self.baseline else [])],
            keep=self.keep,
            quality=self.quality,
            full_size=self.full_size,
            **how,
            **self.compute,
        )

    def _print(self, found: "Evaluation", written: list[Path]) -> None:
        from rich.console import Console

        from ..evaluation import print_results

        if self.as_json:
            self.report({**found.document(), "written": written})
        elif not self.quiet:
            print_results(found.results, Console())
            for size, how in found.computed.items():
                typer.echo(f"frames {parse_size('size', size).in_words} are computed {how}")


def _list_data(arguments: list[str]) -> "dict[str, list[FlowPair]]":
    from ..data import list_pairs, parse_data_argument

    sets: dict[str, list[FlowPair]] = {}
    for name, root in map(parse_data_argument, arguments):
        if name in sets:
            raise InputError(f"--data names {name} twice; evaluate one after the other")
        sets[name] = list_pairs(name, root)
    return sets


def _files_of(sets: "Mapping[str, list[FlowPair]]") -> Iterable[Path]:
    return (file for pairs in sets.values() for file in files_of(pairs))


def _encode(texts: Mapping[Path | None, str]) -> dict[Path, bytes]:
    """Return the contents of the files that were asked for."""
    return {path: text.encode() for path, text in texts.items() if path is not None}


class Submit(options.ComputeSettings):
    """Estimate the test frames of a benchmark and pack them for upload.

    KITTI's server takes the archive as it is. For Sintel, unpack it and run the bundler that
    comes with the data set on the folders clean and final.

    Example:

      dicl-flow submit kitti15 data_scene_flow -o kitti15.zip --weights my.safetensors
    """

    benchmark: str = Argument(..., help="sintel, kitti15 or kitti12.")
    root: Path = Argument(..., help="The data set's folder, with its test frames.")
    output: Path = Option(..., "--output", "-o", help="The .zip file to write.")
    weights: options.Weights = None
    quality: options.Quality = "normal"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..evaluation import predict, submission_entries, write_submission

        check_outputs([self.output], inputs=[self.weights])
        if self.output.suffix.lower() != ".zip":
            raise InputError(f"{self.output}: the output ends in .zip")
        entries = submission_entries(self.benchmark, self.root)
        check_weights([self.weights])
        estimator = self.load()
        pairs = self.track(entries.values(), self.benchmark)
        predictions = predict(pairs, lambda *frames: estimator(*frames).flow)
        write_submission(self.output, entries, predictions)
        self.report({"written": [self.output], "files": len(entries)})


class Table2(options.Settings):
    """Fill in the paper's table 2 with the weights of a chain, below the published rows.

    After `things` they are scored on KITTI-15 and Sintel (C+T), after `kitti` and `sintel` on
    that data set (+K/S), in float32. What is missing stays empty and is named.

    Examples:

      dicl-flow table2 runs/reproduce --data kitti15=KITTI --data sintel-clean=Sintel

      dicl-flow table2 runs/a --without-projection runs/b --data kitti15=KITTI --markdown table2.md
    """

    chain: Path | None = Argument(None, metavar="[CHAIN]", help="Folder written by `reproduce`.")
    without_projection: Path | None = Option(
        None, metavar="DIR", help="Folder written by `reproduce --without-projection`."
    )
    data: options.Data = None
    output: Numbers = None
    markdown: Markdown = None
    device: options.Device = "auto"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..lab.paper_tables import (
            WITH_PROJECTION,
            WITHOUT_PROJECTION,
            find_chain,
            measure_table,
        )

        folders = {WITH_PROJECTION: self.chain, WITHOUT_PROJECTION: self.without_projection}
        given = {method: folder for method, folder in folders.items() if folder is not None}
        if not given:
            raise InputError("name the folder of a chain, such as runs/reproduce")
        wanted = check_outputs([self.output, self.markdown])
        sets = self._list_data()
        refuse_inputs(wanted, _files_of(sets))
        chains = {method: find_chain(method, folder) for method, folder in given.items()}
        used = [weights.path for stages in chains.values() for weights in stages.values()]
        refuse_inputs(wanted, used)

        from ..evaluation import grid_markdown
        from ..files import write_files

        table = measure_table(chains, sets, self.device, self.track)
        grids, document = table.grids(), table.document()
        tables = "\n\n".join(map(grid_markdown, grids)) + "\n"
        numbers = json.dumps(document, indent=1) + "\n"
        contents = _encode({self.output: numbers, self.markdown: tables})
        write_files(contents)
        self.report_grids(document, contents, grids)

    def _list_data(self) -> "dict[str, list[FlowPair]]":
        from ..data import list_pairs, parse_data_argument
        from ..lab.paper_tables import STAGES

        known = STAGES["things"][1]
        sets: dict[str, list[FlowPair]] = {}
        for name, root in map(parse_data_argument, self.data or []):
            if name not in known:
                raise unknown_name("column of table 2", name, known)
            sets[name] = list_pairs(name, root, needs_truth=True)
        if not sets:
            raise InputError(f"--data names no data set; table 2 has {', '.join(known)}")
        return sets
