"""Commands about training data: `data check`, `data bench` and `render`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError, unknown_name
from . import options
from .command import describe
from .inputs_outputs import check_outputs, files_of, find_photos, refuse_inputs
from .options import flag, optional, parse_size

if TYPE_CHECKING:
    from ..config import RenderConfig
    from ..render import Renderer


class Check(options.ReadSettings):
    """Count the pairs of a data set, open some, and draw them on one sheet.

    Files that cannot be read are listed, and the exit code is 2.

    Examples:
      dicl-flow data check sintel-clean MPI-Sintel-complete -o sheet.png
      dicl-flow data check chairs FlyingChairs_release --all
    """

    name: str = Argument(..., help="Data set, such as sintel-clean or kitti15:noc.")
    root: Path = Argument(..., help="Its folder; for pairs also a manifest or video.")
    output: Path | None = options.output("Contact sheet to write, .png or .jpg.", None)
    samples: int = Option(8, min=1, help="How many pairs to open and draw.")
    everything: bool = flag("--all", "Open every pair; the sheet shows --samples of them.")

    def __call__(self) -> None:
        from ..data import data_set, list_pairs
        from ..files import encode_image, write_files
        from ..lab.data_sets import check_pairs, spread

        wanted = check_outputs([self.output], endings=(".png", ".jpg"))
        pairs = list_pairs(self.name, self.root)
        refuse_inputs(wanted, files_of(pairs))
        drawn = spread(pairs, self.samples)
        opened = pairs if self.everything else drawn
        tracked = self.track(opened, "reading")
        survey, sheet, errors = check_pairs(tracked, set(drawn) if wanted else set())
        broken = [*map(describe, errors)]
        contents = {} if sheet is None else {path: encode_image(path, sheet) for path in wanted}
        write_files(contents)
        summary = {
            "data_set": data_set(self.name).label,
            "pairs": len(pairs),
            "with_truth": sum(pair.truth is not None for pair in pairs),
            "opened": len(opened),
            "broken": broken if self.as_json else len(broken),
            **survey.summary(),
            "written": [*contents],
        }
        self.report(summary)
        if broken:
            typer.echo("\n".join(f"broken: {message}" for message in broken), err=True)
            if wanted and sheet is None:
                typer.echo(f"no pair can be read; {self.output} is not written", err=True)
            raise typer.Exit(2)


class LoadingSpeed(options.ReadSettings):
    """Measure how many pairs per second can be fed to training, and what limits it.

    The loader is measured with its workers, then each stage alone on one core. Files that the
    system has cached are read faster than from the disk.

    Example:
      dicl-flow data bench chairs FlyingChairs_release --workers 8
    """

    name: str = Argument(..., help="Data set: chairs, sintel-clean, kitti15, pairs …")
    root: Path = Argument(..., help="Its folder.")
    crop: str = Option("384x256", help="WIDTHxHEIGHT of a sample.")
    batch: int = Option(8, min=1, help="Pairs in a batch.")
    workers: int = Option(2, min=0, help="Loader processes, at most one per core; 0: none.")
    seconds: float = Option(10.0, min=0.1, help="How long to measure.")

    def __call__(self) -> None:
        from ..config import AugmentConfig
        from ..data import FlowDataset, list_pairs

        size = parse_size("--crop", self.crop)
        config = AugmentConfig(size)
        pairs = list_pairs(self.name, self.root, needs_truth=True)

        from ..data.loader import usable_workers, use_one_core
        from ..lab.data_sets import measure_loader, measure_stages

        workers = usable_workers(self.workers)
        data = FlowDataset(pairs, config, 0)
        speed = measure_loader(data, self.batch, workers, self.seconds)
        use_one_core()
        stages = measure_stages(pairs, config, self.batch, self.seconds)
        slowest, total = max(stages, key=stages.__getitem__), sum(stages.values())
        summary = {
            "pairs": len(pairs),
            "crop": size,
            "batch": self.batch,
            "workers": workers,
            "pairs_per_second": speed,
            **{f"{stage}_ms": milliseconds for stage, milliseconds in stages.items()},
            "bottleneck": slowest,
            "bottleneck_share": stages[slowest] / total,
        }
        self.report(summary)


class Render(options.ReadSettings):
    """Render pairs of frames with exact flow, and a sheet to look at them; or a clip.

    The folder is ready for training: `--data pairs=DIR`. Each pair has NAME_img1.png,
    NAME_img2.png, NAME_flow.flo, and NAME_occ.png, white where a pixel is hidden in frame 2.

    A clip has frames 000.png, their flow to the next frame 000.flo, masks 000_occ.png, and
    tracks.npz: points (P, T, 2) in px and occluded (P, T). A clip can also look like footage of
    another domain: thermal, underwater, endoscopic, fog, night, or fluid (particle images).

    Examples:
      dicl-flow render ~/Pictures -n 16 -o scenes
      dicl-flow render procedural -n 200 -o scenes --motion 0.3 --stats motion.png
      dicl-flow render ~/Pictures --kind street --frames 24 --motion 0.3 -o clip
    """

    photos: str = Argument(..., help="Folder of photographs; 'procedural': computed textures.")
    output: Path = options.output("Folder to write into.")
    count: int = Option(16, "--count", "-n", min=1, help="How many pairs.")
    size: str = Option("512x384", help="WIDTHxHEIGHT of a frame.")
    seed: int = Option(0, min=0, help="The same seed gives the same pairs.")
    motion: float = Option(1.0, min=0, max=10, help="Multiplies all motion.")
    kind: str = Option(
        "layers",
        help="layers, or a solid scene: street, motorway, room, corridor, landscape, floating; "
        "for a clip also a domain: thermal, underwater, endoscopic, fog, night, fluid.",
    )
    frames: int | None = optional("One clip of N frames instead of pairs.", metavar="N")
    stats: Path | None = optional("Draw the statistics of the motion.", metavar="PNG")
    device: options.Device = "auto"

    def __call__(self) -> None:
        photos, config = find_photos(self.photos), self._config()
        inputs = [] if photos is None else [photos, *photos.rglob("*")]
        check_outputs(plots=[self.stats], folders=[self.output], inputs=inputs)
        size = parse_size("--size", self.size)

        from ..estimation.compute import choose_device
        from ..lab.data_sets import write_clip
        from ..render import DOMAINS, Clip, Renderer, domain_clip, load_textures

        device, about = choose_device(self.device), {"size": size, "seed": self.seed}
        # a scene shows a dozen textures; a few pairs do not need all photographs in memory
        textures = load_textures(photos, device, self.seed, limit=max(64, 4 * self.count))
        if self.frames is None:
            summary = self._write_pairs(Renderer(config, size, textures, device, self.seed))
            self.report({"pairs": self.count, **about, **summary})
        else:
            settings = (size, textures, self.frames, device, self.seed)
            if self.kind in DOMAINS:
                clip = domain_clip(self.kind, *settings, config)
            else:
                clip = Clip(config, size, textures, self.kind, *settings[2:])
            written = write_clip(clip, self.output, self.track(range(self.frames), "rendering"))
            self.report({"frames": self.frames, **about, "written": [self.output, *written]})

    def _config(self) -> "RenderConfig":
        """Return the settings of the scenes; refuse a clip of layers."""
        from ..config import PLACES, RenderConfig
        from ..render import DOMAINS

        kinds = ("layers", *PLACES, *DOMAINS)
        if self.kind not in kinds:
            raise unknown_name("kind of scene", self.kind, kinds)
        if self.kind in DOMAINS and self.frames is None:
            raise InputError(f"--kind {self.kind} is for clips: add --frames N")
        if self.frames is not None:
            if self.kind == "layers":
                places = ", ".join(PLACES)
                raise InputError(f"--frames needs a solid scene: give --kind, one of {places}")
            if self.stats is not None:
                raise InputError("--stats is for pairs; leave it out with --frames")
        config = RenderConfig(motion=self.motion)
        return config.only(self.kind) if self.kind in PLACES else config

    def _write_pairs(self, renderer: "Renderer") -> dict[str, Any]:
        from ..files import encode_image, write_files
        from ..lab.data_sets import write_pairs

        numbers = self.track(range(self.count), "rendering")
        statistics, sheet = write_pairs(renderer, self.output, numbers)
        pictures = {self.output / "sheet.png": encode_image("sheet.png", sheet)}
        if self.stats is not None:
            from ..pictures.figures import draw_motion

            pictures[self.stats] = draw_motion(statistics.vectors())
        write_files(pictures)
        return {**statistics.summary(), "written": [self.output, *pictures]}
