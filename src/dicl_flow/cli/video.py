"""The commands `video` and `interpolate`: the flow of clips; frames between two frames."""

from dataclasses import replace
from functools import partial
from math import isclose
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError, StopSignal, check_name
from . import options
from .clips import ClipSettings
from .inputs_outputs import (
    assumed,
    check_outputs,
    check_weights,
    describe_clip,
    describe_kept,
    folders_of,
    quote_pattern,
    read_plates,
    refuse_inputs,
    refuse_unlike,
)
from .options import Size, flag, nothing_written, optional

if TYPE_CHECKING:
    from ..video import Covered, Outputs, Selection, Source, Writer
    from ..video.sound import Sound


class Video(ClipSettings):
    """Estimate the flow from each frame of INPUT to the next.

    The name of the output decides what is written; several can be given. The same command
    resumes a run that was stopped, by Ctrl-C or a kill.

    Examples:
      dicl-flow video clip.mp4 -o flow.mp4 --show frame,wheel
      dicl-flow video 'frames/*.png' -o flows --format npz --stats motion.csv
      dicl-flow video clip.mp4 -o flows --backward --occlusion --min-confidence 0.5
      dicl-flow video film.mov -o flow.gif --cuts blank
      dicl-flow video camera:0 -o flow.mp4 --end 10s
      dicl-flow video camera:0 --view --quality fast
    """

    inputs: list[str] = Argument(
        ..., metavar="INPUT", help="Video, folder or 'glob' of frames, or camera:0."
    )
    output: list[Path] = options.output(
        "Video (.mp4 .mov .mkv .webm .gif), array (.npy), folder.", default=[]
    )
    view: bool = flag("--view", "Show the flow in the browser, as fast as it comes; no -o.")
    port: int = Option(8018, min=0, max=65535, help="Port of --view; 0: a free one.")
    show: str | None = optional(
        "Pictures of a video: one or several, with commas, of wheel (default), frame, "
        "overlay, arrows, difference, confidence, occlusion."
    )
    key: bool | None = optional(
        "Explain pictures with captions and keys; on with --show.", "--key/--no-key"
    )
    format: str | None = optional("Files in a folder: flo (default), npz, png …")
    backward: bool = flag("--backward", "Write backward flow too, to a folder or an array.")
    occlusion: bool = flag("--occlusion", "Write masks of hidden pixels, to a folder.")
    min_confidence: options.MinConfidence = None
    cuts: str = Option(
        "estimate",
        help="Flow where a new scene starts: estimate (like any other), blank (unknown), or "
        "hold (that of the pair before).",
    )
    stats: Path | None = optional("Write motion, confidence, cuts by frame.", metavar="CSV")
    region: str | None = optional("Statistics of these pixels only.", metavar="X,Y,WIDTH,HEIGHT")
    mask: Path | None = optional("The same, of the pixels where this image is not black.")
    stride: int = Option(1, help="Use every N-th frame.")
    scale: float = Option(1.0, max=8, help="Scale the frames by this first.")
    on_error: str = Option("stop", help="At a broken or lost frame: stop, or skip it.")
    across_gaps: bool = flag("--across-gaps", "Skip such frames, and estimate flow across them.")
    full_size: options.FullSize = False
    max: options.Maximum = None

    def __call__(self) -> None:
        clip = self.check_clip("one is taken")
        self._check_view()
        if self.view:
            self.report(self._show())
            return

        from ..estimation.estimator import FlowSequence
        from ..video import CUTS, STILL_RATE, check_rate, lost_of, open_source, refuse_one_name

        reading = self.reading
        check_name("--cuts", self.cuts, CUTS)
        more = self.chosen("across_gaps")
        selection = self.select(self.stride, self.scale, self.on_error, **more)
        wanted = self._wanted()
        source = open_source(clip, reading=reading)
        refuse_inputs(self.output, folders_of(source.files))
        if "folder" in wanted.kinds.values():
            refuse_one_name(selection.chosen(source.files), wanted.suffix)
        rate = self.fps or (source.rate or STILL_RATE) / self.stride
        for path in self.output:
            check_rate(path, rate)
        covered = self._covered(source, selection)
        sound, said = self._sound(source, selection, wanted, rate)
        wanted = replace(wanted, look=source.look, sound=sound)
        estimator = self.load()
        if source.scenes and not self.quiet:
            typer.echo("KITTI's pairs: flow is estimated from each _10 to its _11 only", err=True)
        summary = self.process(
            source,
            selection,
            FlowSequence(estimator, backward=wanted.needs_backward),
            partial(wanted.writers, rate=rate, covered=covered),
            [*self.output, *([self.stats] if self.stats else [])],
        )
        notes = assumed(source.files, reading) | said
        notes |= lost_of(source.look, wanted.coding) | self._statistics()
        self.report(summary | options.compute_summary(estimator) | notes)

    def _check_view(self) -> None:
        """Refuse options that --view has no use for, or that need it."""
        if not self.view and not self.output:
            raise InputError("nothing to do: give -o to write the flow, or --view to watch it")
        written: dict[str, Any] = {
            "-o": self.output,
            "--stats": self.stats,
            "--format": self.format,
        }
        written |= {"--backward": self.backward, "--occlusion": self.occlusion}
        given = [name for name, value in written.items() if value]
        if self.view and given:
            raise InputError(
                f"--view shows flow and drops frames, {given[0]} writes all; give one of them"
            )

    def _show(self) -> dict[str, Any]:
        """Serve the pictures until the clip ends or a signal comes; return the summary."""
        from dataclasses import asdict

        from ..estimation.estimator import FlowSequence
        from ..video import LivePictures, open_source, paced
        from ..video.writers import parse_panels
        from ..web.view import View, serving_view

        panels, end = parse_panels(self.show or "frame,wheel"), Event()
        selection = self.select(self.stride, self.scale, "skip")
        source = open_source(self.inputs[0], reading=self.reading)
        shown = source if source.live else paced(source, end, self.fps)
        sequence = FlowSequence(self.load(), backward="occlusion" in panels)
        with StopSignal() as signal:
            frames, stopped = selection.frames(shown), lambda: signal.received is not None
            pictures = LivePictures(frames, sequence, panels, self.max, stopped)
            view = View(lambda: asdict(pictures.state))
            with serving_view(view, self.port) as address:
                if not self.quiet:
                    typer.echo(f"{address} shows the flow, until Ctrl-C", err=True)
                try:
                    state = pictures.show(view.put)
                finally:
                    end.set()
        numbers = {name: v for name, v in asdict(state).items() if name != "ended"}
        return {"written": [], "address": address, **numbers}

    def _sound(
        self, source: "Source", selection: "Selection", wanted: "Outputs", rate: float
    ) -> "tuple[Sound | None, dict[str, str]]":
        """Return the sound of a video, and what to print of it; without a video, nothing."""
        from ..video import CONTAINERS, find_sound

        if wanted.coding is None:
            return None, {}
        containers = (CONTAINERS.get(path.suffix.lower()) for path in wanted.paths)
        container, clip = next(filter(None, containers), None), Path(self.inputs[0])
        same_time = isclose(rate * self.stride, source.rate or 0, rel_tol=1e-3)
        return find_sound(clip, selection.start, container, same_time=same_time)

    def _statistics(self) -> dict[str, str]:
        """Return what to print of the statistics; nothing if they are of whole frames."""
        words = [] if self.region is None else [f"of the region {self.region}"]
        words += [] if self.mask is None else [f"of the pixels of {self.mask}"]
        words += [f"in px of frames scaled by {self.scale:g}"] * (self.scale != 1)
        return {"statistics": ", ".join(words)} if self.stats and words else {}

    def _covered(self, source: "Source", selection: "Selection") -> "Covered":
        """Return what the statistics cover; refuse a region that is not in the frames."""
        import numpy as np

        from ..video import Covered, first_size, parse_region, read_mask

        rate = self.fps if source.files else None
        if self.region is None and self.mask is None:
            return Covered(rate=rate)
        if self.region is not None and self.mask is not None:
            raise InputError("both --region and --mask select pixels for the statistics: give one")
        if self.stats is None:
            raise InputError("--region and --mask are for the statistics: give --stats CSV too")
        size = first_size(source)
        if self.region is not None:
            region = parse_region(self.region, size)
        else:
            assert self.mask is not None
            region = read_mask(self.mask, size)
        region = selection.resized(region.astype(np.uint8) * 255) > 127
        if not region.any():
            raise InputError(f"--scale {self.scale:g} leaves no pixel of the region")
        return Covered(region, rate)

    def _wanted(self) -> "Outputs":
        """Return what to write; refuse what cannot be written."""
        from ..video import Outputs

        names = ("stats", "show", "key", "format", "backward", "occlusion", "max", "encoder")
        wanted = Outputs(tuple(self.output), **self.chosen(*names))
        check_outputs(
            [self.stats, *(path for path, kind in wanted.kinds.items() if kind != "folder")],
            folders=[path for path, kind in wanted.kinds.items() if kind == "folder"],
            inputs=[Path(self.inputs[0]), self.mask, self.weights],
        )
        return wanted


class Interpolate(ClipSettings):
    """Make the frames between two frames, or slow motion of a whole clip.

    The flow in both directions shows where things are in between. A clip is a video, a folder or
    a 'glob' of frames. Across a cut nothing is blended: the frame before it is held. 16-bit
    images stay 16-bit, .exr keeps values above 1, and alpha is kept. The same command resumes a
    clip that was stopped.

    Examples:
      dicl-flow interpolate frame1.png frame2.png -o middle.png
      dicl-flow interpolate frame1.png frame2.png -o slow.png -n 3
      dicl-flow interpolate clip.mp4 -o slow.mp4 --factor 4
    """

    inputs: list[str] = Argument(
        ..., metavar="INPUT", help="Two frames of one size (one may be -), or one clip."
    )
    output: Path = options.output(
        "Picture to write; with -n, NAME_1 … NAME_N. Of a clip: video "
        "(.mp4 .mov .mkv .webm .gif) or folder."
    )
    time: float | None = optional("0: frame 1, 1: frame 2; default 0.5.", min=0, max=1)
    count: int | None = optional("How many frames, evenly spaced.", "--count", "-n", min=1)
    alpha: options.Alpha = None
    factor: int | None = optional("Of a clip: how many times slower.", min=2, max=64)
    on_error: str | None = optional("At a broken frame of a clip: stop (default), or skip.")

    def __call__(self) -> None:
        if len(self.inputs) > 2:
            raise quote_pattern(self.inputs, "two frames or one clip are taken")
        if len(self.inputs) == 1:
            if self.factor is None or self.time is not None or self.count is not None:
                raise InputError(
                    "one input is a clip, which takes --factor N (N times slower), not --time or "
                    "-n; give a second frame for the frames between two"
                )
            self.report(self._slow_motion(self.factor))
            return
        clip = self.chosen("factor", "fps", "encoder", "start", "end", "on_error", "restart")
        for name, value in clip.items():
            if value not in (None, False):
                raise InputError(
                    f"--{name.replace('_', '-')} is for a clip, and these are two frames; give a "
                    "folder or a quoted pattern, as 'frames/*.png'"
                )
        self.report(self._between())

    def _between(self) -> dict[str, Any]:
        """Write the frames between two; return the summary."""
        from ..files import encode_plate, write_files

        times, paths, reading = self._times(), [*map(Path, self.inputs)], self.reading
        check_outputs(plates=list(times), inputs=[*paths, self.weights])
        frame1, frame2 = read_plates(*paths, reading=reading)
        refuse_unlike(paths, (frame1, frame2))
        check_weights(self.weights)

        from ..estimation.warping import interpolate

        with nothing_written():
            estimator = self.load()
            with self.estimating() as progress:
                result = estimator(frame1.seen, frame2.seen, backward=True, progress=progress)
            assert result.backward is not None
            known = frame1.values, frame2.values, result.flow, result.backward.flow
            made = {path: frame1.with_values(interpolate(*known, at)) for path, at in times.items()}
            contents = {path: encode_plate(path, plate) for path, plate in made.items()}
        write_files(contents)
        return {
            "written": list(times),
            "times": ", ".join(f"{time:.3g}" for time in times.values()),
            "size": Size(*frame1.pixels.shape[:2]),
            **assumed(paths, reading),
            **describe_kept(frame1, self.output),
        }

    def _times(self) -> dict[Path, float]:
        """Return each file to write, and its time."""
        if self.time is not None and self.count is not None:
            raise InputError("give --time or -n, not both")
        if self.count is None:
            return {self.output: 0.5 if self.time is None else self.time}
        stem, suffix, numbers = self.output.stem, self.output.suffix, range(1, self.count + 1)
        return {self.output.with_name(f"{stem}_{n}{suffix}"): n / (self.count + 1) for n in numbers}

    def _slow_motion(self, factor: int) -> dict[str, Any]:
        """Write a clip `factor` times slower; return the summary."""
        clip, output = self.check_clip(), self.output

        from .. import video
        from ..estimation.estimator import FlowSequence

        selection = self.select(1, 1.0, self.on_error or "stop")
        self.check_output(output)
        how = self.chosen("fps", "encoder", "reading")
        film = video.plan_film(clip, output, slower=factor, start=selection.start, **how)
        source, rate, coding, sound, notes = film
        refuse_inputs([output], folders_of(source.files))

        def writers(parts: Path) -> "list[Writer]":
            if coding is None:
                return [video.SlowMotionFrames(output, factor, video.still_suffix(source))]
            return [video.SlowMotion(output, parts, rate, factor, coding, sound)]

        sequence = FlowSequence(self.load(), backward=True)
        summary = self.process(source, selection, sequence, writers, [output])
        kept = describe_clip(source, output, self.reading, coding)
        return summary | assumed(source.files, self.reading) | kept | notes
