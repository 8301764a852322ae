"""Adapts weights to clips of six domains without truth, and scores them on other clips with it.

    python benchmarks/adapt_domains.py PHOTOS HELD_OUT -o build/domains --minutes 0.4
    python benchmarks/adapt_domains.py PHOTOS HELD_OUT -o build/domains --stop-after 8  # again
    python benchmarks/adapt_domains.py procedural procedural -o build/tiny --tiny        # on a CPU

PHOTOS texture the clips that are adapted to and the rendered scenes, HELD_OUT the clips that are
scored. Every domain is adapted to once with the best settings (`--best`); on the domains of
`--compare` the teacher alone is compared with new second frames, the photometric loss and both, and
with a control that trains on rendered scenes only for the same time, all with three seeds.

The same call goes on: `results.json` in the output folder is written after each run, and is all
that another machine needs to continue; clips are rendered again where they are missing. With
`--stop-after` no run starts after so many minutes. The table has the mean EPE in px over the valid
pixels of the test clips, before and after, and the largest rise on another domain.
"""

import argparse
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import mean
from time import perf_counter
from traceback import print_exc

import dicl_flow  # isort: skip (first: torch reads what it sets)

import numpy as np
import torch

from dicl_flow.adaptation.plan import ENDLESS
from dicl_flow.adaptation.settings import read_settings
from dicl_flow.config import LevelConfig, ModelConfig, RenderConfig
from dicl_flow.data import FlowSample, list_pairs, read_sample
from dicl_flow.errors import InputError
from dicl_flow.estimation.compute import choose_device
from dicl_flow.files import encode_image, to_uint8, write_files
from dicl_flow.lab.data_sets import write_clip
from dicl_flow.models import build
from dicl_flow.render import DOMAINS, TextureAtlas, domain_clip, load_textures
from dicl_flow.training import Limits, Processes, RunFolder, SceneSource, train
from dicl_flow.weights import Weights, encode_weights, read_weights, resolve

SCENES = "scenes"  # the control
VARIANTS = {
    "teacher": [],
    "new-frames": ["adapt.new_frames=0.3"],
    "photometric": ["loss.photometric=[0.1,0.02]"],
    "both": ["adapt.new_frames=0.3", "loss.photometric=[0.1,0.02]"],
    SCENES: [],
}
TRAINED, TESTED = 50_000, 60_000  # seeds of the first clips
PATHS = ("photos", "held_out", "output")  # options that say nothing of the measurement
MAY_CHANGE = ("stop_after", "only", "best", "domains", "compare", "seeds", "device")
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
    bench = Bench(options)
    start = perf_counter()
    for run in bench.missing():
        if options.stop_after and perf_counter() - start > 60 * options.stop_after:
            print(f"{options.stop_after:g} minutes are over; the same call goes on")
            break
        try:
            bench.measure(*run)
        except Exception:  # the other runs do not depend on it
            print(f"{name_of(*run):28} failed", flush=True)
            print_exc()
    print(table(bench.results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of photographs, or procedural")
    parser.add_argument("held_out", help="other photographs for the test clips, or procedural")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-w", "--weights", default="rendered")
    parser.add_argument("--minutes", type=float, default=0.4, help="of training, per run")
    parser.add_argument("--best", choices=VARIANTS, default="both")
    parser.add_argument("--domains", default=",".join(DOMAINS), help="to adapt to, with commas")
    parser.add_argument("--compare", default="thermal,fluid", help="domains, with commas")
    parser.add_argument("--seeds", type=int, default=3, help="of the compared domains")
    parser.add_argument("--clips", type=int, default=4, help="per domain, to adapt to and to test")
    parser.add_argument("--frames", type=int, default=20, help="of a clip that is adapted to")
    parser.add_argument("--test-frames", type=int, default=5, help="of a clip that is scored")
    parser.add_argument("--size", default="512x384")
    parser.add_argument("--motion", type=float, default=1.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", help="a part of the names of the runs, such as fog/")
    parser.add_argument("--stop-after", type=float, metavar="MINUTES")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: nothing is learned")
    options = parser.parse_args()
    unknown = {*named(options.domains), *named(options.compare)} - {*DOMAINS}
    if unknown or min(options.seeds, options.clips) < 1 or options.test_frames < 2:
        raise InputError(f"unknown domains {sorted(unknown)}, or no seeds, clips or frames")
    if options.tiny:
        options.size, options.clips, options.frames, options.test_frames = "48x32", 1, 16, 2
        options.seeds, options.motion, options.compare = 1, 0.2, "thermal"
        options.domains = "thermal,fluid"
    return options


class Bench:
    """The clips, the runs and their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, options.output
        self.device = choose_device(options.device)
        self.path = self.folder / "results.json"
        self.results = self._begin()
        self.weights = self._initial()
        self._tests: dict[str, list[list[FlowSample]]] = {}

    def _begin(self) -> dict:
        """What is there already, of the same settings."""
        skipped = (*PATHS, *MAY_CHANGE)
        setting = {k: v for k, v in vars(self.options).items() if k not in skipped}
        if not self.path.is_file():
            name = (
                torch.cuda.get_device_name() if self.device.type == "cuda" else platform.machine()
            )
            about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": name, "options": setting}
            return {**about, "before": {}, "runs": {}}
        results = json.loads(self.path.read_text())
        if results["options"] != setting:
            raise InputError(f"{self.path} has other settings: give another output folder")
        return results

    def _initial(self) -> Path:
        if not self.options.tiny:
            return resolve(self.options.weights)
        path = self.folder / "tiny.safetensors"
        torch.manual_seed(0)
        write_files({path: encode_weights(Weights(TINY_NETWORK, build(TINY_NETWORK).state_dict()))})
        return path

    def missing(self) -> list[tuple[str, str, int]]:
        """The runs that have no result: every domain once, then the comparison, seed by seed."""
        options = self.options
        wanted = [(domain, options.best, 0) for domain in named(options.domains)]
        for seed in range(options.seeds):
            wanted += [(d, v, seed) for d in named(options.compare) for v in VARIANTS]
        runs = [run for run in dict.fromkeys(wanted) if name_of(*run) not in self.results["runs"]]
        return [run for run in runs if (options.only or "") in name_of(*run)]

    def measure(self, domain: str, variant: str, seed: int) -> None:
        """Adapt, score, and note the result."""
        self._score_before()
        start, name = perf_counter(), name_of(domain, variant, seed)
        changes = [*VARIANTS[variant], *(TINY_CHANGES if self.options.tiny else LIGHT)]
        if variant == SCENES:
            weights, about = self._train_on_scenes(name, changes, seed), {}
        else:
            weights, about = self._adapt(domain, name, changes, seed)
        epe = self.errors(weights)
        seconds = perf_counter() - start
        self.results["runs"][name] = {**about, "epe": epe, "seconds": round(seconds, 1)}
        self._write()
        before = self.results["before"][domain]
        print(f"{name:28} {before:7.3f} -> {epe[domain]:7.3f} px, {seconds:.0f} s", flush=True)

    def _score_before(self) -> None:
        if not self.results["before"]:
            self.results["before"] = self.errors(self.weights)
            self._write()

    def _adapt(
        self, domain: str, name: str, changes: Sequence[str], seed: int
    ) -> tuple[Path, dict]:
        """The one place that adapts: the weights count here whether they are accepted or not."""
        ended = dicl_flow.adapt(
            self.training_clips(domain),
            self.folder / f"runs/{name}.safetensors",
            self.weights,
            photos=self._photos(self.options.photos),
            changes=changes,
            seed=seed,
            device=self.options.device,
            **self._length(),
        )
        verdict = {"accepted": ended.accepted, "reasons": list(ended.reasons)}
        return RunFolder(ended.report / "student").weights, verdict

    def _train_on_scenes(self, name: str, changes: Sequence[str], seed: int) -> Path:
        """The same network, recipe and time, without the footage."""
        length, model = self._length(), read_weights(self.weights).config
        _, recipe = read_settings(changes, model, seed, length.get("steps", ENDLESS))
        folder = RunFolder(self.folder / f"runs/{name}")
        train(
            recipe,
            SceneSource(recipe, self._photos(self.options.photos)),
            folder,
            Processes(self.device),
            initial=self.weights,
            resume=True,
            limits=Limits(length.get("minutes")),
            quiet=True,
        )
        return folder.weights

    def _length(self) -> dict:
        return {"steps": 2} if self.options.tiny else {"minutes": self.options.minutes}

    def errors(self, weights: Path) -> dict[str, float]:
        """Mean EPE in px of the test clips of each domain; every clip counts equally."""
        estimator = dicl_flow.load(weights, device=self.options.device)
        return {
            domain: mean(
                mean(pair_error(estimator, sample) for sample in samples)
                for samples in self.tests(domain)
            )
            for domain in DOMAINS
        }

    def tests(self, domain: str) -> list[list[FlowSample]]:
        """The pairs of each test clip; they stay in memory."""
        if domain not in self._tests:
            pairs = [list_pairs("pairs", f, needs_truth=True) for f in self.test_clips(domain)]
            self._tests[domain] = [[*map(read_sample, clip)] for clip in pairs]
        return self._tests[domain]

    def training_clips(self, domain: str) -> list[Path]:
        """Folders of frames, without truth."""
        folders = []
        for number, folder in self._folders("train", domain):
            if not (folder / ".whole").is_file():
                seed, count = TRAINED + number, self.options.frames
                clip = self._clip(domain, seed, count, self.train_textures)
                frames = clip.frames().permute(0, 2, 3, 1).cpu().numpy()
                contents = {
                    folder / f"{time:03d}.png": encode_image("x.png", to_uint8(frame))
                    for time, frame in enumerate(frames)
                }
                write_files(contents)
                write_files({folder / ".whole": b""})
            folders.append(folder)
        return folders

    def test_clips(self, domain: str) -> list[Path]:
        """Folders of frames, flow and masks."""
        folders = []
        for number, folder in self._folders("test", domain):
            if not (folder / "tracks.npz").is_file():  # written last
                count = self.options.test_frames
                clip = self._clip(domain, TESTED + number, count, self.test_textures)
                write_clip(clip, folder, range(count))
            folders.append(folder)
        return folders

    def _folders(self, part: str, domain: str) -> Iterator[tuple[int, Path]]:
        """The number and folder of each clip."""
        for number in range(self.options.clips):
            yield number, self.folder / "clips" / part / f"{domain}-{number}"

    def _clip(self, domain: str, seed: int, count: int, textures: TextureAtlas):
        width, height = map(int, self.options.size.split("x"))
        config = RenderConfig(motion=self.options.motion)
        if self.options.tiny:
            config = replace(config, num_shapes=8, shape_side=32)
        return domain_clip(domain, (height, width), textures, count, self.device, seed, config)

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

    def _write(self) -> None:
        write_files({self.path: (json.dumps(self.results, indent=1) + "\n").encode()})


def named(names: str) -> list[str]:
    return [name for name in names.split(",") if name]


def name_of(domain: str, variant: str, seed: int) -> str:
    return f"{domain}/{variant}/{seed}"


def pair_error(estimator, sample) -> float:
    flow = estimator(sample.image1, sample.image2).flow
    return float(np.linalg.norm(flow - sample.flow, axis=-1)[sample.valid].mean())


def table(results: dict) -> str:
    """A row per domain and variant, the mean over its seeds."""
    before, runs = results["before"], results["runs"]
    lines = [
        "| domain | trained with | seeds | before | after | change | each seed "
        "| worst elsewhere | accepted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(name.rsplit("/", 1)[0] for name in runs):
        domain, variant = kind.split("/")
        found = [run for name, run in runs.items() if name.rsplit("/", 1)[0] == kind]
        changes = [change(run["epe"][domain], before[domain]) for run in found]
        others = [
            (mean(change(run["epe"][other], before[other]) for run in found), other)
            for other in DOMAINS
            if other != domain
        ]
        rise, where = max(others)
        after = mean(run["epe"][domain] for run in found)
        accepted = sum(run.get("accepted", False) for run in found)
        each = ", ".join(f"{value:+.1%}" for value in changes)
        told = "-" if variant == SCENES else f"{accepted}/{len(found)}"
        lines.append(
            f"| {domain} | {variant} | {len(found)} | {before[domain]:.3f} | {after:.3f} | "
            f"{mean(changes):+.1%} | {each} | {rise:+.1%} ({where}) | {told} |"
        )
    return "\n".join(lines)


def change(after: float, before: float) -> float:
    return after / before - 1


if __name__ == "__main__":
    main()
