"""Package new weights: calibrate them, make every page's numbers and pictures again, install.

    python -m benchmarks.release WEIGHTS --photos PHOTOS --datasets FOLDER [--steps gpu]
    python -m benchmarks.release WEIGHTS --dry-run
    python -m benchmarks.release --tables
    python -m benchmarks.release WEIGHTS --extend

`STEPS` lists what is done. Each step runs as a separate process, with a time limit, in a separate
folder, with a copy of the package that holds the new weights: the tree is not touched until
`install`, the last step, writes everything at once; the weights then say how they were trained
(`benchmarks/history.json`; add to it first) and how well they do on the yardstick. A step that is
done for these weights is skipped, so the same command resumes. Two machines can share the work: run
`--steps gpu` on one, copy the folder of `--work` to the other, and run `--steps cpu` there.
`--tables` fills the tables of the pages, those between `<!-- release: NAME -->` and `<!-- end -->`,
from the numbers in the tree. `--extend` installs weights that have more than the packaged ones
(what int8 needs, a quality's own parts and calibration): the numbers of all else still hold.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.release_tables import (
    PAGES,
    QUALITIES,
    YARDSTICK,
    earlier_rows,
    fill,
    score_line,
)
from dicl_flow.errors import InputError, unknown_name
from dicl_flow.files import write_files

ROOT = Path(__file__).parents[1]
PACKAGED = "src/dicl_flow/weights/rendered.safetensors"
STORE = "src/dicl_flow/weights/__init__.py"
RECORD = "benchmarks/results/release.json"
HISTORY = "benchmarks/history.json"
"""What the packaged weights say of their training: data, recipe, time."""
_NAMING = ("benchmarks", "docs", "src")  # folders with files that name the packaged weights
TRACKS = "src/dicl_flow/tracking/calibration.json"
FIGURES = ("dot-product", "cosine", "mlp", "reduced-dicl", "dicl", "dicl-with-dap")


@dataclass(frozen=True)
class Step:
    """What one step runs, in order, and what it makes."""

    commands: tuple[str, ...]
    """`> FILE` at the end keeps the output; PHOTOS and DATA are links in the step's folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """By path in the tree: the file in the step's folder."""
    notes: tuple[str, ...] = ()
    """Files in the step's folder whose numbers a person puts into `pages`."""
    pages: tuple[str, ...] = ()
    """Pages, or sections of them, whose sentences speak of these numbers."""
    gpu: bool = False
    resumes: bool = False
    """Whether the commands continue what an interrupted run has left."""
    minutes: float = 20
    after: tuple[str, ...] = ("calibrate",)


def _calibrations() -> Iterator[str]:
    start = "weights.safetensors"
    for quality in QUALITIES:
        yield (
            f"dicl-flow calibrate -w {start} -d rendered=PHOTOS/held-out -o {quality}.safetensors "
            f"--quality {quality} --device {{device}} --json > calibration-{quality}.json"
        )
        start = f"{quality}.safetensors"


def _scenes() -> Iterator[str]:
    for size, seed in (("640x436", 1000), ("1242x375", 2000)):
        yield f"dicl-flow render PHOTOS/held-out -n 32 --size {size} --seed {seed} -o scenes-{seed}"
        yield (
            f"dicl-flow eval --data pairs=scenes-{seed} --weights rendered --precision fp32 "
            f"--device {{device}} --markdown {size}.md"
        )


_NAMES = ("pixel", "peaks", "levels", "kernels")
_PAIRS = (
    "middlebury=DATA/Middlebury sintel-clean=DATA/Sintel sintel-final=DATA/Sintel "
    "kitti15=DATA/KITTI2015 kitti12:noc=DATA/KITTI2012 chairs:all=DATA/FlyingChairs_release "
    "stereo=DATA/MiddleburyStereo2014"
)
_FIGURE2 = " ".join(f"-w figures/{name}.safetensors" for name in (*FIGURES[:3], "dicl"))
STEPS: dict[str, Step] = {
    "calibrate": Step(
        tuple(_calibrations()),
        {PACKAGED: f"{QUALITIES[-1]}.safetensors"}
        | {f"benchmarks/results/calibration-{q}.json": f"calibration-{q}.json" for q in QUALITIES},
        pages=("docs/model-card.md",),
        gpu=True,
        after=(),
    ),
    "yardstick": Step(
        (
            "python benchmarks/yardstick.py DATA -w rendered -w dis --quality normal "
            "--quality best --device {device} -o yardstick.json",
        ),
        {"benchmarks/results/yardstick.json": "yardstick.json"},
        pages=("docs/model-card.md", "docs/measurements/weights.md", "README.md#accuracy"),
        gpu=True,
        resumes=True,
    ),
    "figures": Step(
        ("dicl-flow ablate figures --data rendered=PHOTOS/train -o . --device {device}",),
        {f"docs/ablations/figures.{kind}": f"figures.{kind}" for kind in ("json", "svg")}
        | {f"docs/ablations/figures/{n}.safetensors": f"{n}.safetensors" for n in FIGURES},
        pages=("docs/ablations/README.md#figures-2-and-4",),
        gpu=True,
        resumes=True,
        minutes=40,
    ),
    "levels": Step(
        ("python benchmarks/level_errors.py PHOTOS/held-out {device} 24 rendered > levels.txt",),
        notes=("levels.txt",),
        pages=("docs/measurements/weights.md#levels",),
        gpu=True,
    ),
    "scenes": Step(
        tuple(_scenes()),
        notes=("640x436.md", "1242x375.md"),
        pages=("docs/measurements/weights.md#levels",),
        gpu=True,
    ),
    "occlusion": Step(
        ("python benchmarks/occlusion.py PHOTOS/held-out -n 24 --seed 3003 > occlusion.txt",),
        notes=("occlusion.txt",),
        pages=("docs/how-to/confidence-and-occlusion.md#how-occlusion-is-found",),
        gpu=True,
    ),
    "equality": Step(
        (f"python benchmarks/equality.py {{device}} {_PAIRS} > equality.txt",),
        notes=("equality.txt",),
        pages=("docs/speed.md#how-equal",),
        gpu=True,
    ),
    "track-calibration": Step(
        (
            "python benchmarks/calibrate_tracks.py PHOTOS/train -o calibration.json --jobs 12 "
            "--device {device}",
        ),
        {TRACKS: "calibration.json"},
        gpu=True,
        minutes=30,
    ),
    "tracks": Step(
        ("python benchmarks/tracks.py PHOTOS/held-out -o tracks.json --jobs 12 --device {device}",),
        {"benchmarks/results/tracks.json": "tracks.json"},
        pages=("docs/measurements/tracks.md#accuracy",),
        gpu=True,
        resumes=True,
        minutes=30,
        after=("calibrate", "track-calibration"),
    ),
    "figures-2-4": Step(
        (
            f"dicl-flow analyze pixel 160 200 {_FIGURE2} -o figure2 --device cpu",
            "dicl-flow analyze peaks -w figures/dicl.safetensors "
            "-w figures/dicl-with-dap.safetensors -o figure4 --device cpu",
        ),
        {
            "docs/ablations/figures/figure2.png": "figure2/pixel.png",
            "docs/ablations/figures/figure4.png": "figure4/peaks.png",
            "docs/ablations/figures/figure4.json": "figure4/peaks.json",
        },
        pages=("docs/ablations/README.md#figures-2-and-4",),
        after=("calibrate", "figures"),
    ),
    "analyses": Step(
        (
            "dicl-flow analyze pixel 160 200 -o . --device cpu",
            "dicl-flow analyze peaks -o . --device cpu",
            "dicl-flow analyze kernels -o .",
            "dicl-flow analyze levels --rendered PHOTOS/held-out -n 8 -o . --device cpu",
        ),
        {f"docs/analysis/{n}.{k}": f"{n}.{k}" for n in _NAMES for k in ("json", "png")},
        pages=("docs/analysis.md",),
        minutes=40,
    ),
    "known-motion": Step(
        (
            "python -m campaigns.numbers --only 'still,without information,turned,shifts' "
            "--figure shifts.svg -o known-motion.json",
        ),
        {f"docs/reliability/{name}": name for name in ("known-motion.json", "shifts.svg")},
        pages=("docs/reliability.md#known-motion",),
    ),
    "demo": Step(
        ("python benchmarks/page_pictures.py demo",),
        {"docs/demo.jpg": "demo.jpg"},
    ),
    "explorer": Step(
        ("python benchmarks/page_pictures.py explorer",),
        {f"docs/{name}": name for name in ("explore.webp", "explore-levels.webp")},
        pages=("docs/how-to/exploring.md#why-is-this-vector-wrong",),
    ),
}
"""In the order in which they run; `install` follows. Those without a GPU need about 25 minutes on
two slow cores, and `explorer` a browser."""
INSTALL = "install"


def choose_steps(text: str, steps: Mapping[str, Step]) -> list[str]:
    """Read "all", "gpu", "cpu" or names with commas between them; keep the order of the table."""
    halves = {
        "all": [*steps, INSTALL],
        "gpu": [name for name, step in steps.items() if step.gpu],
        "cpu": [*(name for name, step in steps.items() if not step.gpu), INSTALL],
    }
    if text in halves:
        return halves[text]
    wanted = text.split(",")
    for name in wanted:
        if name not in (*steps, INSTALL):
            raise unknown_name("step", name, (*halves, *steps, INSTALL))
    return [name for name in (*steps, INSTALL) if name in wanted]


def show_steps(names: Iterable[str], steps: Mapping[str, Step]) -> str:
    """Return what would be done, a line for each command and file."""
    lines = []
    for name in names:
        step = steps.get(name)
        if step is None:
            lines.append(f"{name}: write all files above, {STORE}, {RECORD}; fill the tables of")
            lines += [f"    {page}" for page in PAGES]
            continue
        where = "GPU" if step.gpu else "CPU"
        lines.append(f"{name} ({where}, at most {step.minutes} minutes)")
        lines += [f"    $ {command}" for command in step.commands]
        lines += [f"    -> {path}" for path in step.files]
        lines += [f"    -> {path}, for a person" for path in step.notes]
    return "\n".join(lines)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Release:
    """The release of some weights: a folder with what its steps have made so far."""

    weights: bytes
    """The candidate, in float16, without a calibration that counts."""
    work: Path
    photos: Path | None = None
    datasets: Path | None = None
    device: str = "cuda"
    steps: Mapping[str, Step] = field(default_factory=lambda: STEPS)
    root: Path = ROOT
    """The tree into which it is installed."""

    @property
    def folder(self) -> Path:
        """Where everything of these weights is."""
        return self.work / digest(self.weights)[:12]

    def record(self) -> dict[str, Any]:
        """Return what is done: by step, its date and the sha256 of each file."""
        path = self.folder / "record.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def made(self, path: str) -> Path:
        """Return the place of a finished file of the tree."""
        return self.folder / "files" / path

    def is_done(self, name: str) -> bool:
        """Whether a step was finished, and its files are still as it has made them."""
        entry = self.record().get(name)
        if entry is None:
            return False
        found = {path: self.made(path) for path in self._outputs(name)}
        return all(
            file.is_file() and digest(file.read_bytes()) == entry["files"].get(path)
            for path, file in found.items()
        )

    def _outputs(self, name: str) -> dict[str, str]:
        """By path below `files`: the file in the step's folder; notes are kept there, too."""
        step = self.steps[name]
        return {**step.files, **{f"notes/{name}/{Path(note).name}": note for note in step.notes}}

    def run(self, name: str) -> None:
        """Run one step, and keep its files if all of them are there."""
        step = self.steps[name]
        for other in step.after:
            if not self.is_done(other):
                raise InputError(f"step {name} needs {other}, which is not done for these weights")
        place = self.folder / "steps" / name
        if not step.resumes:
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        self._link(name, place)
        environment = self._environment(name)
        for command in step.commands:
            run_command(name, self._words(command), place, environment, step.minutes)
        found = {path: place / file for path, file in self._outputs(name).items()}
        for file in found.values():
            if not file.is_file():
                raise InputError(f"step {name} has not written {file.name}")
        contents = {self.made(path): file.read_bytes() for path, file in found.items()}
        entry = {
            "date": date.today().isoformat(),
            "files": {path: digest(contents[self.made(path)]) for path in found},
        }
        record = {**self.record(), name: entry}
        contents[self.folder / "record.json"] = (json.dumps(record, indent=1) + "\n").encode()
        for path in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_files(contents)

    def _link(self, name: str, place: Path) -> None:
        """Put what commands name into the step's folder."""
        text = " ".join(self.steps[name].commands)
        given = {"PHOTOS": ("photos", self.photos), "DATA": ("datasets", self.datasets)}
        for link, (option, target) in given.items():
            if not re.search(rf"\b{link}\b", text):
                continue
            if target is None or not target.is_dir():
                raise InputError(f"step {name} needs a folder: --{option} (given: {target})")
            (place / link).unlink(missing_ok=True)
            (place / link).symlink_to(target.resolve())
        if name == "calibrate":
            write_files({place / "weights.safetensors": self.weights})
        if "figures" in self.steps[name].after:
            figures = place / "figures"
            figures.mkdir(exist_ok=True)
            for file in FIGURES:
                made = self.made(f"docs/ablations/figures/{file}.safetensors")
                write_files({figures / made.name: made.read_bytes()})

    def _environment(self, name: str) -> dict[str, str]:
        """Return the variables of a step: its package has what the steps before it have made."""
        package, after = self.root / "src", self.steps[name].after
        if after:
            package = self.folder / "package"
            shutil.rmtree(package, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(self.root / "src" / "dicl_flow", package / "dicl_flow", ignore=ignored)
            made = [path for step in after for path in self.steps[step].files]
            changed = {p: self.made(p).read_bytes() for p in made if p.startswith("src/")}
            changed[STORE] = self._store(changed[PACKAGED])
            write_files({package / path.removeprefix("src/"): changed[path] for path in changed})
        places = [str(package), str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}

    def _store(self, weights: bytes) -> bytes:
        """Return the file that has the sha256 of the packaged weights, with the new one."""
        text = (self.root / STORE).read_text()
        pattern = r'("rendered": ")[0-9a-f]{64}(")'
        new, count = re.subn(pattern, rf"\g<1>{digest(weights)}\g<2>", text)
        if count != 1:
            raise InputError(f"{STORE} does not hold the sha256 of the weights 'rendered' once")
        return new.encode()

    def _words(self, command: str) -> list[str]:
        program, *words = shlex.split(command.format(device=self.device))
        if program == "dicl-flow":
            return [sys.executable, "-m", "dicl_flow", *words]
        if words and words[0].endswith(".py"):
            words[0] = str(self.root / words[0])
        return [sys.executable if program == "python" else program, *words]

    def described(self) -> bytes:
        """Return the new weights; their metadata has the history and the scores."""
        from dicl_flow.weights import encode_weights, read_weights

        history = json.loads((self.root / HISTORY).read_text())
        metrics = score_line(json.loads(self.made(YARDSTICK).read_text()))
        weights = read_weights(self.made(PACKAGED))
        about = {**weights.about, **history, "metrics": metrics}
        return encode_weights(replace(weights, about=about))

    def install(self) -> list[str]:
        """Write weights, files and pages to the tree, all at once; return what was written."""
        missing = [name for name in self.steps if not self.is_done(name)]
        if missing:
            raise InputError(f"nothing is installed: not done are {', '.join(missing)}")
        files = {
            path: self.made(path).read_bytes() for s in self.steps.values() for path in s.files
        }
        files = rename(files, files[PACKAGED], self.described())
        record = self.record()
        document = {
            "weights": digest(files[PACKAGED]),
            "steps": {name: record[name]["date"] for name in self.steps},
        }
        files |= earlier_rows(self.root, files)
        files[RECORD] = (json.dumps(document, indent=1) + "\n").encode()
        files[STORE] = self._store(files[PACKAGED])
        files |= fill(self.root, files)
        for path in files:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        write_files({self.root / path: content for path, content in files.items()})
        return list(files)


def rename(files: Mapping[str, bytes], before: bytes, after: bytes) -> dict[str, bytes]:
    """Replace the weights, and their sha256 in all files that name it."""
    old, new = digest(before).encode(), digest(after).encode()
    named = {
        path: content.replace(old, new).replace(old[:12], new[:12])
        for path, content in files.items()
    }
    return {**named, PACKAGED: after}


def extend(root: Path, weights: Path) -> list[str]:
    """Install weights that only add to the packaged ones; return what was written."""
    from dicl_flow.weights import Weights, encode_weights, halve, read_weights

    before, old = (root / PACKAGED).read_bytes(), read_weights(root / PACKAGED)
    new = halve(read_weights(weights))

    def without_additions(found: Weights) -> bytes:
        calibrations = {q: found.quality_calibrations.get(q) for q in old.quality_calibrations}
        live = found.live if old.live else None
        extremes = {key: found.extremes[key] for key in old.extremes if key in found.extremes}
        kept = {"quality_calibrations": calibrations, "live": live, "extremes": extremes}
        return encode_weights(replace(found, about={}, **kept))

    if without_additions(new) != without_additions(old):
        raise InputError(
            f"{weights} changes what the packaged weights {digest(before)[:12]} hold; release them "
            f"without --extend"
        )
    name = digest(before)[:12].encode()
    places = (path for folder in _NAMING for path in (root / folder).rglob("*.*"))
    sources = [path for path in places if path.is_file() and path.suffix != ".pyc"]
    contents = {path.relative_to(root).as_posix(): path.read_bytes() for path in sources}
    named = {path: content for path, content in contents.items() if name in content}
    files = rename(named, before, encode_weights(new))
    write_files({root / path: content for path, content in files.items()})
    return list(files)


def run_command(
    name: str, words: Sequence[str], place: Path, environment: Mapping[str, str], minutes: float
) -> None:
    """Run a command of a step; a failure, or too much time, is an error with the step's name."""
    kept = None
    if ">" in words:
        kept, words = place / words[-1], words[:-2]
    log = place / "log.txt"
    with log.open("ab") as errors, (kept or log).open("wb" if kept else "ab") as output:
        child = subprocess.Popen(
            words, cwd=place, env=environment, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            code = child.wait(60 * minutes)
        except BaseException as error:  # its children end, too; Ctrl-C included
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise InputError(f"step {name} took more than {minutes} minutes; see {log}") from None
    if code:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise InputError(f"step {name} failed with exit code {code}: {last} (see {log})")


def number_sentences(text: str, section: str = "") -> Iterator[tuple[int, str]]:
    """Line and text of each line of prose with a number; not tables, code or headings.

    `section` is the anchor of a heading: only what follows it, up to the next one.
    """
    code, here = False, not section
    for number, line in enumerate(text.splitlines(), start=1):
        code ^= line.lstrip().startswith("```")
        if line.startswith("#") and not code and section:
            here = anchor(line) == section
        prose = not (code or line.lstrip().startswith(("```", "|", "#", "<", "!")))
        if here and prose and re.search(r"\d", re.sub(r"\]\([^)]*\)", "]", line)):
            yield number, line.strip()


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-")


def prose_to_read(root: Path, steps: Mapping[str, Step]) -> str:
    """Return the lines of pages that may speak of the weights of before."""
    pages = dict.fromkeys(page for step in steps.values() for page in step.pages)
    lines = ["Read these again; the numbers in sentences are not filled in:"]
    for page in pages:
        path, _, section = page.partition("#")
        found = number_sentences((root / path).read_text(), section)
        lines += [f"{path}:{number}: {line}" for number, line in found]
    return "\n".join(lines)


def read_candidate(path: Path) -> bytes:
    """Return weights in float16, as they are packaged."""
    from dicl_flow.weights import encode_weights, halve, read_weights, resolve

    return encode_weights(halve(read_weights(resolve(path))))


def run_release(release: Release, names: Iterable[str]) -> None:
    """Run the steps that are not done, one after the other, and install if asked to."""
    for name in names:
        if name == INSTALL:
            written = release.install()
            print(f"{INSTALL}: {len(written)} files", flush=True)
            print(prose_to_read(release.root, release.steps))
        elif release.is_done(name):
            print(f"{name}: done before", flush=True)
        else:
            print(f"{name} …", flush=True)
            release.run(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument(
        "--photos", type=Path, help="a folder with the photographs: train and held-out"
    )
    folder = os.environ.get("DICL_FLOW_DATASETS")
    parser.add_argument("--datasets", type=Path, default=folder and Path(folder))
    parser.add_argument("--steps", default="all", help="all, gpu, cpu, or names: calibrate,figures")
    parser.add_argument("--device", default="cuda", help="for the steps that want a GPU")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--dry-run", action="store_true", help="print the steps")
    parser.add_argument("--tables", action="store_true", help="only fill the tables of the pages")
    parser.add_argument("--extend", action="store_true", help="install what only adds")
    arguments = parser.parse_args()
    try:
        names = choose_steps(arguments.steps, STEPS)
        if arguments.dry_run:
            print(show_steps(names, STEPS))
        elif arguments.tables:
            changed = fill(ROOT, {})
            write_files({ROOT / path: content for path, content in changed.items()})
        elif arguments.weights is None:
            raise InputError("give the weights to package: a .safetensors file")
        elif arguments.extend:
            print(f"{len(extend(ROOT, arguments.weights))} files")
        else:
            weights, given = read_candidate(arguments.weights), arguments
            places = (given.work.resolve(), given.photos, given.datasets, given.device)
            run_release(Release(weights, *places), names)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
