"""Parts trained for smaller search radii against the same ones cut out: a trial for quality "live".

    python -m benchmarks.live_parts FOLDER -o trial --photos PHOTOS --minutes 4 --device cuda

For each RADII[xSCALE], as in `live.py`: the EPE on the real pairs of FOLDER with the packaged
weights, then with the parts that recipe "live" trains for these RADII from those weights, once for
all scales: photographs and scenes are of all sizes. 33333 is quality "normal" and trains nothing.

All is kept in the folder of `-o`, and what is there is not computed again: scores.json, and the
trained tensors as RADII.safetensors. `--complete RADII` writes weights with these parts:

    python -m benchmarks.live_parts -o trial --complete 33221
"""

import dicl_flow  # isort: skip (first: torch reads what it sets)

import argparse
import json
import os
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from safetensors.torch import load_file, save

from benchmarks.live import quality_of
from benchmarks.live import save as save_document
from benchmarks.yardstick import SETS, Method, find_pairs, measure, summarize
from dicl_flow.config import QUALITIES, Quality, TrainConfig
from dicl_flow.data import FlowPair
from dicl_flow.errors import InputError
from dicl_flow.estimation.compute import choose_device
from dicl_flow.files import write_files
from dicl_flow.lab.speed import describe_machine
from dicl_flow.training import Limits, Processes, RunFolder, open_source, read_recipe, train
from dicl_flow.weights import LiveParts, Weights, encode_weights, read_weights, resolve

COMBINATIONS = [
    *("33333", "33221", "33221x0.85", "22221", "22221x0.85", "33211", "33211x0.85"),
    *("22211", "22211x0.85", "22211x0.7"),
]
Pairs = dict[str, list[FlowPair]]


class Trial:
    """What is in the folder of a trial, and what it still lacks."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.folder = arguments, arguments.output
        self.path = self.folder / "scores.json"
        self.weights = read_weights(resolve(arguments.weights))
        self.document: dict[str, Any] = {"trainings": {}, "methods": {}}
        if self.path.exists():
            self.document = json.loads(self.path.read_text())

    def run(self, pairs: Pairs) -> None:
        """Score each combination without its parts, then with them."""
        given = {name: getattr(self.arguments, name) for name in ("minutes", "steps", "changes")}
        settings = {"weights": self.weights.sha256, **given}
        if self.document.setdefault("settings", settings) != settings:
            raise InputError(f"{self.path} is of other settings; use another folder")
        for text in self.arguments.combination or COMBINATIONS:
            quality = quality_of(text)
            self.score(text, quality, replace(self.weights, live=None), "cut out", pairs)
            if self.weights.config.smaller(quality.radii):
                self.score(text, quality, self.with_parts(text[:5]), "trained", pairs)

    def score(
        self, text: str, quality: Quality, weights: Weights, which: str, pairs: Pairs
    ) -> None:
        """Add the scores that are missing."""
        estimator = dicl_flow.load(weights, self.arguments.device, quality=quality)
        known = self.document["methods"].setdefault(text, {}).setdefault(which, {})
        known |= {"precision": estimator.precision, **describe_machine(estimator.device)}
        known["date"] = date.today().isoformat()
        name = f"{text}, {which}"
        method = Method(name, known, lambda *frames: (estimator(*frames).flow, None))
        scores = known.setdefault("scores", {})
        measure(method, pairs, scores, self.save)
        known["epe"] = summarize(scores)["mean of the sets"]["mean"]
        self.save()

    def with_parts(self, radii: str) -> Weights:
        """Return the weights with the parts for `radii`, which are trained if need be."""
        path, smaller = self.folder / f"{radii}.safetensors", quality_of(radii).radii
        if not path.exists():
            parts = self.train(radii)
            write_files({path: save({key: t.contiguous() for key, t in parts.tensors.items()})})
        return replace(
            self.weights,
            live=LiveParts(self.weights.config.smaller(smaller), load_file(path)),
        )

    def train(self, radii: str) -> LiveParts:
        """Train the parts for `radii`."""
        QUALITIES[radii] = quality_of(radii)  # where recipes look for theirs
        steps = [] if self.arguments.steps is None else [f"steps={self.arguments.steps}"]
        changes = [f'quality="{radii}"', *steps, *self.arguments.changes]
        config = read_recipe("live", changes)
        processes = Processes(choose_device(self.arguments.device))
        start = perf_counter()
        with TemporaryDirectory() as name:
            folder = RunFolder(Path(name) / "run")
            outcome = train(
                config,
                open_source(config, {"rendered": self.arguments.photos}),
                folder,
                processes,
                initial=resolve(self.arguments.weights),
                limits=Limits(self.arguments.minutes),
            )
            if not outcome.finished:
                raise InputError(f"the training for {radii} was interrupted; start again")
            live = read_weights(folder.weights).live
        assert live is not None
        self.document["trainings"][radii] = self.about(config, outcome.step, start)
        self.save()
        return live

    def about(self, config: TrainConfig, steps: int, start: float) -> dict[str, Any]:
        """Return what is to be known of a training."""
        machine = describe_machine(choose_device(self.arguments.device))
        seconds = {"steps": steps, "seconds": round(perf_counter() - start, 1)}
        return {"radii": config.radii, **seconds, **machine, "date": date.today().isoformat()}

    def save(self) -> None:
        """Write the document."""
        save_document(self.path, self.document)

    def table(self) -> str:
        """Return the errors, relative to those of "normal" too, in Markdown."""
        methods = self.document["methods"]
        normal = methods.get("33333", {}).get("cut out", {}).get("epe")
        lines = ["| | EPE, cut out | trained | of normal, cut out | trained |", "|---" * 5 + "|"]
        for text, kinds in methods.items():
            errors = [kinds.get(which, {}).get("epe") for which in ("cut out", "trained")]
            shares = [error and normal and error / normal for error in errors]
            cells = [f"{number:.3f}" if number else "" for number in (*errors, *shares)]
            lines.append(f"| {' | '.join([text, *cells])} |")
        return "\n".join(lines) + "\n"


def complete(trial: Trial, radii: str) -> None:
    """Write the weights with trained parts."""
    if not (trial.folder / f"{radii}.safetensors").exists():
        raise InputError(f"{trial.folder} has no trained parts for {radii}")
    path = trial.folder / f"live-{radii}.safetensors"
    found, weights = trial.document["trainings"][radii], trial.with_parts(radii)
    how = f"{found['steps']} steps, {found['seconds'] / 60:.0f} minutes, {found['device']}"
    about = {**weights.about, "parts of quality live": f"{how}, {found['date']}"}
    write_files({path: encode_weights(replace(weights, about=about))})
    print(path)


def checked(text: str) -> str:
    """Refuse what is not RADII[xSCALE]."""
    quality_of(text)
    return text


def main() -> None:
    """Train and score what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("DICL_FLOW_DATASETS")
    parser.add_argument("folder", type=Path, nargs="?", default=folder and Path(folder))
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the trial")
    parser.add_argument("-w", "--weights", default="rendered")
    parser.add_argument("--photos", type=Path, help="photographs of the rendered scenes")
    parser.add_argument("--combination", type=checked, action="append")
    parser.add_argument("--minutes", type=float, help="of each training")
    parser.add_argument("--steps", type=int, help="of each training; default: the recipe's")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="as in `train`")
    parser.add_argument("--only", choices=SETS, action="append", help="score these sets alone")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--complete", metavar="RADII", help="write weights with trained parts")
    arguments = parser.parse_args()
    try:
        trial = Trial(arguments)
        if arguments.complete:
            complete(trial, arguments.complete)
            return
        if arguments.folder is None or arguments.photos is None:
            raise InputError("give the folder of the sets, and --photos")
        trial.run({name: find_pairs(arguments.folder, name) for name in arguments.only or SETS})
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(trial.table(), end="")


if __name__ == "__main__":
    main()
