"""Adapts weights to clips of six domains without truth, and scores them on other clips with it.

    python benchmarks/adapt_domains.py PHOTOS HELD_OUT -o build/domains --steps 400 --jobs 3
    python benchmarks/adapt_domains.py procedural procedural -o build/tiny --tiny   # on a CPU

PHOTOS texture the clips that are adapted to and the rendered scenes, HELD_OUT the clips that are
scored. Every domain is adapted to with the best settings (`--best`), those of `--compare` with
three seeds, and there once also with the other ways of `--variants`. The control trains on rendered
scenes only for as many steps; it does not depend on the domain and is scored on all of them.

Runs are as long as `--steps` says, so several of them (`--jobs`) may share a GPU. The same call
goes on: `results.json` in the output folder is written after each run, and is all that another
machine needs to continue; clips are rendered again where they are missing. With `--stop-after` no
run starts after so many minutes. The table has the mean EPE in px over the valid pixels of the test
clips, before and after, where nine of ten changes lie in a bootstrap over the clips, and the
largest rise on another domain.
"""

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from time import perf_counter, time
from traceback import print_exc

import dicl_flow  # isort: skip (first: torch reads what it sets)

import numpy as np
import torch

from dicl_flow.adaptation.settings import read_settings
from dicl_flow.adaptation.student import between
from dicl_flow.config import LevelConfig, ModelConfig, RenderConfig
from dicl_flow.data import FlowSample, list_pairs, read_sample
from dicl_flow.errors import InputError
from dicl_flow.estimation.compute import choose_device
from dicl_flow.files import encode_image, to_uint8, write_files
from dicl_flow.lab.data_sets import write_clip
from dicl_flow.lab.speed import describe_machine
from dicl_flow.models import build
from dicl_flow.render import DOMAINS, Clip, FluidClip, TextureAtlas, domain_clip, load_textures
from dicl_flow.training import Processes, RunFolder, SceneSource, train
from dicl_flow.weights import Weights, encode_weights, read_weights, resolve

Errors = dict[str, list[float]]
SCENES, EVERY = "scenes", "every"  # the control, which is of every domain
VARIANTS = {
    "default": [],
    "without-look": ["adapt.look=0.0"],
    "without-views": ["adapt.views=0.0"],
    "without-motion": ["adapt.footage_motion=false"],
    "new-frames": ["adapt.new_frames=0.5"],
    "photometric": ["loss.photometric=[0.1,0.02]"],
}
TRAINED, TESTED = 50_000, 60_000  # seeds of the first clips
PATHS = ("photos", "held_out", "output")  # options that say nothing of the measurement
MAY_CHANGE = (
    *("stop_after", "deadline", "only", "best", "variants", "domains", "compare", "seeds"),
    *("device", "jobs", "shares"),
)
TINY = "tiny.safetensors"
LIGHT = [  # short runs, which are judged here, by weights without a calibration
    *("adapt.pairs=120", "adapt.held_back_pairs=16", "adapt.scenes=16"),
    "adapt.calibration_scenes=4",
]
TINY_NETWORK = ModelConfig(
    levels=(LevelConfig(4, 1, ((8, 1),)),), matcher="dot", projection=False, multiple=1
)
TINY_CHANGES = [
    *("augment.crop=[16,32]", "render.sizes=[]", "render.num_shapes=8", "render.shape_side=32"),
    *("loss.refined=[1.0]", "loss.matched=[0.8]", "loss.matching=[]", "batch=2", "workers=0"),
    *("log_every=1", "save_every=1"),
    *("optimizer.precision=fp32", "adapt.pairs=4", "adapt.held_back_pairs=2", "adapt.scenes=1"),
    *("adapt.calibration_scenes=1", "adapt.confidence=0.0", "adapt.agreement=[1.0,5.0]"),
    "adapt.difference=1.0",
]


def main() -> None:
    options = parse()
    results = Results(options)
    if options.tiny:
        write_tiny_network(options.output)
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), start, [options]) as pool:
        before = None if results.before else pool.submit(errors_before)
        runs = [pool.submit(measure, *run) for run in results.missing()]
        if before:
            results.note_before(before.result())
        for done in as_completed(runs):
            if (found := done.result()) is not None:
                results.add(*found)
    print(table(results.contents))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of photographs, or procedural")
    parser.add_argument("held_out", help="other photographs for the test clips, or procedural")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-w", "--weights", default="rendered")
    parser.add_argument("--steps", type=int, default=400, help="of training, per run")
    parser.add_argument("--best", choices=VARIANTS, default="default")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="to compare, with commas")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of all runs"
    )
    parser.add_argument("--domains", default=",".join(DOMAINS), help="to adapt to, with commas")
    parser.add_argument("--compare", default="thermal,fluid", help="domains, with commas")
    parser.add_argument("--seeds", type=int, default=3, help="of the compared domains")
    parser.add_argument("--clips", type=int, default=3, help="per domain, to adapt to")
    parser.add_argument("--frames", type=int, default=16, help="of such a clip")
    parser.add_argument("--test-clips", type=int, default=24, help="per domain, to score")
    parser.add_argument("--test-frames", type=int, default=2, help="of such a clip")
    parser.add_argument("--size", default="512x384")
    parser.add_argument("--motion", type=float, default=0.4, help="1: a few clips decide the mean")
    parser.add_argument("--shares", default="0.5,0.7,1", help="of the way, also scored")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="processes; a few can share a GPU")
    parser.add_argument("--only", help="a part of the names of the runs, such as fog/")
    parser.add_argument("--stop-after", type=float, metavar="MINUTES")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: nothing is learned")
    options = parser.parse_args()
    unknown = {*named(options.domains), *named(options.compare)} - {*DOMAINS}
    unknown |= {*named(options.variants)} - {*VARIANTS}
    counts = (options.seeds, options.clips, options.test_clips, options.steps, options.jobs)
    if unknown or min(counts) < 1 or options.test_frames < 2:
        raise InputError(f"unknown names {sorted(unknown)}, or no seeds, clips, steps or frames")
    if options.tiny:
        options.size, options.clips, options.frames = "48x32", 1, 16
        options.test_clips, options.test_frames = 1, 2
        options.seeds, options.motion, options.compare = 1, 0.2, "thermal"
        options.domains, options.steps = "thermal,fluid", 2
    options.deadline = options.stop_after and time() + 60 * options.stop_after
    return options


class Results:
    """What was found, in a file that is written after each run."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Go on with what is there already, of the same settings."""
        self.options, self.path = options, options.output / "results.json"
        skipped = (*PATHS, *MAY_CHANGE)
        setting = {k: v for k, v in vars(options).items() if k not in skipped}
        machine = describe_machine(choose_device(options.device))["device"]
        about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine, "options": setting}
        self.contents: dict = {**about, "before": {}, "runs": {}}
        if self.path.is_file():
            self.contents = json.loads(self.path.read_text())
        if self.contents["options"] != setting:
            raise InputError(f"{self.path} has other settings: give another output folder")

    @property
    def before(self) -> Errors:
        """The EPE of each clip of each domain with the initial weights."""
        return self.contents["before"]

    def note_before(self, errors: Errors) -> None:
        """Keep the errors of the initial weights."""
        self.before.update(errors)
        self._write()

    def missing(self) -> list[tuple[str, str, int]]:
        """The runs that have no result: every domain once, the comparison, then more seeds."""
        options, compared = self.options, named(self.options.compare)
        wanted = [(domain, options.best, 0) for domain in named(options.domains)]
        wanted += [(EVERY, SCENES, 0), *product(compared, named(options.variants), (0,))]
        for seed in range(1, options.seeds):
            wanted += [(EVERY, SCENES, seed), *((d, options.best, seed) for d in compared)]
        runs = [run for run in dict.fromkeys(wanted) if name_of(*run) not in self.contents["runs"]]
        return [run for run in runs if (options.only or "") in name_of(*run)]

    def add(self, name: str, result: dict) -> None:
        """Keep the result of a run, and print it."""
        self.contents["runs"][name] = result
        self._write()
        print(f"{name}, {result['seconds']:.0f} s", flush=True)
        print(*rows_of(name.rsplit("/", 1)[0], [result], self.before), sep="\n", flush=True)

    def _write(self) -> None:
        write_files({self.path: (json.dumps(self.contents, indent=1) + "\n").encode()})


def write_tiny_network(folder: Path) -> None:
    torch.manual_seed(0)
    weights = Weights(TINY_NETWORK, build(TINY_NETWORK).state_dict())
    write_files({folder / TINY: encode_weights(weights)})


# --- in a process of the pool ---------------------------------------------------------------------

_bench: "Bench"


def start(options: argparse.Namespace) -> None:
    global _bench
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.jobs))
    _bench = Bench(options)


def errors_before() -> Errors:
    return _bench.errors(_bench.weights)


def measure(domain: str, variant: str, seed: int) -> tuple[str, dict] | None:
    """Adapt and score; nothing if it failed, which the other runs do not depend on, or is late."""
    name = name_of(domain, variant, seed)
    if _bench.options.deadline and time() > _bench.options.deadline:
        return None
    try:
        return name, _bench.measure(domain, variant, seed)
    except Exception:
        print(f"{name:28} failed", flush=True)
        print_exc()
        return None


class Bench:
    """The clips and the runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, options.output
        self.device = choose_device(options.device)
        self.weights = self.folder / TINY if options.tiny else resolve(options.weights)
        self._tests: dict[str, list[list[FlowSample]]] = {}

    def measure(self, domain: str, variant: str, seed: int) -> dict:
        """Adapt, or train the control, and score."""
        start, name = perf_counter(), name_of(domain, variant, seed)
        changes = [*(TINY_CHANGES if self.options.tiny else LIGHT), *self.options.set]
        changes += VARIANTS.get(variant, ())
        run = self._train_on_scenes if variant == SCENES else partial(self._adapt, domain)
        end, about = run(name, changes, seed)
        begin, end = read_weights(self.weights), read_weights(end)
        shares = {about["share"], *map(float, named(self.options.shares))}
        by_share = {share: self.errors(between(begin, end, share)) for share in sorted(shares)}
        epe = by_share[about["share"]]
        seconds = round(perf_counter() - start, 1)
        return {**about, "epe": epe, "by_share": by_share, "seconds": seconds}

    def _adapt(
        self, domain: str, name: str, changes: Sequence[str], seed: int
    ) -> tuple[Path, dict]:
        """The one place that adapts: the weights count here whether they are accepted or not."""
        ended = dicl_flow.adapt(
            [self._rendered(TRAINED, domain, n) for n in range(self.options.clips)],
            self.folder / f"runs/{name}.safetensors",
            self.weights,
            photos=self._photos(self.options.photos),
            changes=changes,
            seed=seed,
            device=self.options.device,
            steps=self.options.steps,
        )
        about = {"share": ended.numbers["share"], "reasons": list(ended.reasons)}
        return RunFolder(ended.report / "student").weights, {"accepted": ended.accepted, **about}

    def _train_on_scenes(self, name: str, changes: Sequence[str], seed: int) -> tuple[Path, dict]:
        """The same network, recipe and steps, without the footage."""
        model = read_weights(self.weights).config
        settings, recipe = read_settings(changes, model, seed, self.options.steps)
        folder = RunFolder(self.folder / f"runs/{name}")
        train(
            recipe,
            SceneSource(recipe, self._photos(self.options.photos)),
            folder,
            Processes(self.device),
            initial=self.weights,
            resume=True,
            quiet=True,
        )
        return folder.weights, {"share": settings.share}

    def errors(self, weights: Path | Weights) -> Errors:
        """Mean EPE in px of each test clip of each domain."""
        estimator = dicl_flow.load(weights, device=self.options.device)
        return {
            domain: [
                round(mean(pair_error(estimator, sample) for sample in samples), 4)
                for samples in self.tests(domain)
            ]
            for domain in DOMAINS
        }

    def tests(self, domain: str) -> list[list[FlowSample]]:
        """The pairs of each test clip; they stay in memory."""
        if domain not in self._tests:
            numbers = range(self.options.test_clips)
            folders = [self._rendered(TESTED, domain, number) for number in numbers]
            pairs = [list_pairs("pairs", folder, needs_truth=True) for folder in folders]
            self._tests[domain] = [[*map(read_sample, clip)] for clip in pairs]
        return self._tests[domain]

    def _rendered(self, first_seed: int, domain: str, number: int) -> Path:
        """The folder of a clip, drawn if it is not there; if it is scored, with flow and masks."""
        is_test = first_seed == TESTED
        folder = self.folder / "clips" / ("test" if is_test else "train") / f"{domain}-{number}"
        if not folder.is_dir():
            own = folder.with_name(f".{folder.name}.{os.getpid()}")
            count = self.options.test_frames if is_test else self.options.frames
            textures = self.test_textures if is_test else self.train_textures
            clip = self._clip(domain, first_seed + number, count, textures)
            if is_test:
                write_clip(clip, own, range(count))
            else:
                write_frames(clip, own)
            with suppress(OSError):  # another process was faster
                own.rename(folder)
        return folder

    def _clip(self, domain: str, seed: int, count: int, textures: TextureAtlas) -> Clip | FluidClip:
        width, height = map(int, self.options.size.split("x"))
        config = RenderConfig(motion=self.options.motion)
        if self.options.tiny:
            config = replace(config, num_shapes=8, shape_side=32)
        device = textures.images.device
        return domain_clip(domain, (height, width), textures, count, device, seed, config)

    @cached_property
    def train_textures(self) -> TextureAtlas:
        """Those of the clips that are adapted to."""
        return self._textures(self.options.photos)

    @cached_property
    def test_textures(self) -> TextureAtlas:
        """Those of the clips that are scored."""
        return self._textures(self.options.held_out)

    def _textures(self, photos: str) -> TextureAtlas:
        size = {"size": (32, 32)} if self.options.tiny else {}
        return load_textures(self._photos(photos), self.device, 0, limit=200, **size)

    @staticmethod
    def _photos(photos: str) -> Path | None:
        return None if photos == "procedural" else Path(photos)


def write_frames(clip: Clip | FluidClip, folder: Path) -> None:
    frames = clip.frames().permute(0, 2, 3, 1).cpu().numpy()
    files = {
        folder / f"{time:03d}.png": encode_image("x.png", to_uint8(frame))
        for time, frame in enumerate(frames)
    }
    write_files(files)


def named(names: str) -> list[str]:
    return [name for name in names.split(",") if name]


def name_of(domain: str, variant: str, seed: int) -> str:
    return f"{domain}/{variant}/{seed}"


def pair_error(estimator, sample) -> float:
    flow = estimator(sample.image1, sample.image2).flow
    return float(np.linalg.norm(flow - sample.flow, axis=-1)[sample.valid].mean())


def table(results: dict) -> str:
    """A row per domain and variant, the mean over its seeds; of the control, for each domain."""
    lines = [
        "| domain | trained with | seeds | before | after | change | 90 % of the changes lie in "
        "| each seed | worst elsewhere | accepted |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(name.rsplit("/", 1)[0] for name in results["runs"]):
        found = [run for name, run in results["runs"].items() if name.rsplit("/", 1)[0] == kind]
        lines += rows_of(kind, found, results["before"])
    return "\n".join(lines)


def rows_of(kind: str, runs: list[dict], before: Errors) -> list[str]:
    """The rows of the runs of a domain and a variant, one per seed."""
    domain, variant = kind.split("/")
    accepted = f"{sum(run.get('accepted', False) for run in runs)}/{len(runs)}"
    rows = []
    for scored in DOMAINS if domain == EVERY else (domain,):
        each = [change(run["epe"][scored], before[scored]) for run in runs]
        over_seeds = np.mean([run["epe"][scored] for run in runs], 0)
        low, high = interval(over_seeds, before[scored])
        rise, where = max(
            (mean(change(run["epe"][other], before[other]) for run in runs), other)
            for other in DOMAINS
            if other != scored
        )
        rows.append(
            f"| {scored} | {variant} | {len(runs)} | {mean(before[scored]):.3f} | "
            f"{over_seeds.mean():.3f} | {mean(each):+.1%} | {low:+.1%} to {high:+.1%} | "
            f"{', '.join(f'{value:+.1%}' for value in each)} | {rise:+.1%} ({where}) | "
            f"{'-' if domain == EVERY else accepted} |"
        )
    return rows


def change(after: Sequence[float], before: Sequence[float]) -> float:
    """The change of the mean as a share of what it was before."""
    return mean(after) / mean(before) - 1


def interval(after: Sequence[float], before: Sequence[float]) -> tuple[float, float]:
    """Where nine of ten changes lie if other clips had been drawn."""
    drawn = np.random.default_rng(0).integers(len(before), size=(2000, len(before)))
    changes = np.array(after)[drawn].mean(1) / np.array(before)[drawn].mean(1) - 1
    low, high = np.percentile(changes, (5, 95))
    return float(low), float(high)


if __name__ == "__main__":
    main()
