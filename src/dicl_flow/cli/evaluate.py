"""Commands that score networks: `eval`, `submit` and `table2`."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from .options import flag, optional, parse_size

if TYPE_CHECKING:
    from ..data import FlowPair
    from ..evaluation import Evaluation

Numbers = Annotated[
    Path | None, Option("--output", "-o", metavar="JSON", help="Write all numbers to a file.")
]
Markdown = Annotated[Path | None, Option(help="Write the tables as Markdown.")]


class Evaluate(options.EstimateSettings):
    """Score a network on data sets, and compare it with the published numbers.

    EPE and EPE images, 1/3/5 px, Fl-all, WAUC, EPE by speed and by visibility, AUSE of the
    confidence. Pairs without truth are judged by warping, which is not an end-point error.

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
    sparsification: Path | None = optional(
        "Draw how well the confidence finds errors.", metavar="PNG"
    )
    keep: Path | None = optional("Keep predictions: METHOD/DATA/PAIR.flo.", metavar="DIR")
    predictions: Path | None = optional("Score what --keep has written.", metavar="DIR")
    valid_only: bool = flag(
        "--valid-only", "Leave out what Sintel marks as invalid, unlike papers."
    )
    full_size: options.FullSize = False

    def __call__(self) -> None:
        from ..evaluation import draw_sparsification
        from ..files import write_files

        sets = self._check()
        scored = self._evaluate(sets)
        numbers, tables = scored.to_json().encode(), scored.to_markdown().encode()
        contents = _asked_for({self.output: numbers, self.markdown: tables})
        if self.sparsification is not None:
            contents[self.sparsification] = draw_sparsification(scored.results)
        write_files(contents)
        folders = [path for path in (self.keep, self._pictures) if path is not None]
        self._print(scored, [*contents, *folders])

    @property
    def _pictures(self) -> Path | None:
        return None if self.worst is None else self.worst[1]

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
        if self.worst is not None and self.worst[0] < 1:
            raise InputError(
                f"--worst takes a number of pairs from 1 up and a folder, got {self.worst[0]}"
            )
        wanted = check_outputs(
            [self.output, self.markdown],
            plots=[self.sparsification],
            folders=[self.keep, self._pictures],
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

    def _print(self, scored: "Evaluation", written: list[Path]) -> None:
        from rich.console import Console

        from ..evaluation import print_results

        if self.as_json:
            self.report({**scored.document(), "written": written})
        elif not self.quiet:
            print_results(scored.results, Console())
            for size, how in scored.computed.items():
                typer.echo(f"frames {parse_size('size', size).in_words} are computed {how}")


def _asked_for(contents: Mapping[Path | None, bytes]) -> dict[Path, bytes]:
    return {path: content for path, content in contents.items() if path is not None}


class Submit(options.EstimateSettings):
    """Estimate the test frames of a benchmark and pack them for upload.

    KITTI's server takes the archive as it is. For Sintel, unpack it and run the bundler that
    comes with the data set on the folders clean and final.

    Example:
      dicl-flow submit kitti15 data_scene_flow -o kitti15.zip --weights my.safetensors
    """

    benchmark: str = Argument(..., help="sintel, kitti15 or kitti12.")
    root: Path = Argument(..., help="The data set's folder, with its test frames.")
    output: Path = options.output("The .zip file to write.")

    def __call__(self) -> None:
        from ..evaluation import predict, submission_entries, write_submission

        check_outputs([self.output], inputs=[self.weights], endings=[".zip"])
        entries = submission_entries(self.benchmark, self.root)
        check_weights(self.weights)
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
    without_projection: Path | None = optional(
        "Folder written by `reproduce --without-projection`.", metavar="DIR"
    )
    data: options.Data = None
    output: Numbers = None
    markdown: Markdown = None
    device: options.Device = "auto"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..data import list_pairs, parse_data_argument
        from ..lab import paper_table

        folders = {
            paper_table.WITH_PROJECTION: self.chain,
            paper_table.WITHOUT_PROJECTION: self.without_projection,
        }
        if not any(folders.values()):
            raise InputError("name the folder of a chain, such as runs/reproduce")
        wanted = check_outputs([self.output, self.markdown])
        known = paper_table.STAGES["things"][1]
        sets: dict[str, list[FlowPair]] = {}
        for name, root in map(parse_data_argument, self.data or []):
            if name not in known:
                raise unknown_name("column of table 2", name, known)
            sets[name] = list_pairs(name, root, needs_truth=True)
        if not sets:
            raise InputError(f"--data names no data set; table 2 has {', '.join(known)}")
        refuse_inputs(wanted, files_of(chain.from_iterable(sets.values())))
        chains = {m: paper_table.find_chain(m, folder) for m, folder in folders.items() if folder}
        used = [weights.path for stages in chains.values() for weights in stages.values()]
        refuse_inputs(wanted, used)

        from ..evaluation import grid_markdown
        from ..files import write_files

        table = paper_table.measure_table(chains, sets, self.device, self.track)
        grids, document = table.grids(), table.document()
        tables = "\n\n".join(map(grid_markdown, grids)) + "\n"
        contents = _asked_for({self.output: encode_json(document), self.markdown: tables.encode()})
        write_files(contents)
        self.report_grids(document, contents, grids)
