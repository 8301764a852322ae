"""The command `interpolate`: frames between two frames, or slow motion of a whole clip."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from ..errors import InputError
from . import options
from .inputs_outputs import (
    check_outputs,
    check_weights,
    files_among,
    folders_of,
    quote_pattern,
    read_frames,
    refuse_inputs,
)
from .printing import Size
from .video import ClipSettings

if TYPE_CHECKING:
    from ..video import Source, Writer


class Interpolate(ClipSettings):
    """Make the frames between two frames, or slow motion of a whole clip.

    The flow in both directions shows where things are in between. A clip is a video, a folder or
    a 'glob' of frames. Across a cut nothing is blended: the frame before it is held. 16-bit
    images stay 16-bit. The same command resumes a clip that was stopped.

    Examples:

      dicl-flow interpolate frame1.png frame2.png -o middle.png

      dicl-flow interpolate frame1.png frame2.png -o slow.png -n 3

      dicl-flow interpolate clip.mp4 -o slow.mp4 --factor 4
    """

    inputs: list[str] = Argument(
        ..., metavar="INPUT", help="Two frames of one size (one may be -), or one clip."
    )
    output: Path = Option(
        ...,
        "--output",
        "-o",
        help="Picture to write; with -n, NAME_1 … NAME_N. Of a clip: video "
        "(.mp4 .mov .mkv .webm .gif) or folder.",
    )
    time: float | None = Option(None, help="Between 0 (frame 1) and 1 (frame 2); default 0.5.")
    count: int | None = Option(
        None, "--count", "-n", min=1, help="This many frames, evenly spaced."
    )
    factor: int | None = Option(None, min=2, max=64, help="Of a clip: how many times slower.")
    fps: float | None = Option(
        None, min=0.01, max=480, help="Of a clip: rate to write; default: its own."
    )
    encoder: options.Encoder = None
    start: str | None = Option(None, help="Of a clip: first frame, 120 or 3.5s.")
    end: str | None = Option(None, help="Of a clip: frame to stop before.")
    on_error: str | None = Option(
        None, help="At a broken frame of a clip: stop (default), or skip it."
    )
    restart: bool = Option(
        False, "--restart", help="Start a clip from scratch instead of resuming it."
    )
    weights: options.Weights = None
    quality: options.Quality = "normal"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        if len(self.inputs) > 2:
            raise quote_pattern(self.inputs, "two frames or one clip are taken")
        if len(self.inputs) == 1:
            if self.factor is None or self.time is not None or self.count is not None:
                raise InputError(
                    "one input is a clip, which takes --factor N (N times slower), not --time or "
                    "-n; give a second frame for the frames between two"
                )
            self.report(self._slow_motion(self.inputs[0], self.factor))
        else:
            self._refuse_clip_options()
            self.report(self._between())

    def _refuse_clip_options(self) -> None:
        for name in ("factor", "fps", "encoder", "start", "end", "on_error", "restart"):
            if getattr(self, name) not in (None, False):
                raise InputError(
                    f"--{name.replace('_', '-')} is for a clip, and these are two frames; give a "
                    "folder or a quoted pattern, as 'frames/*.png'"
                )

    def _between(self) -> dict[str, Any]:
        """Write the frames between two; return the summary."""
        from ..files import encode_image, to_integers, write_files

        times, paths = self._times(), [*map(Path, self.inputs)]
        check_outputs(pictures=list(times), inputs=[*files_among(*paths), self.weights])
        frame1, frame2 = map(to_integers, read_frames(*paths))
        check_weights([self.weights])

        from ..estimation.warping import interpolate

        result = self.load()(frame1, frame2, backward=True)
        assert result.backward is not None
        flows = result.flow, result.backward.flow
        pictures = {path: interpolate(frame1, frame2, *flows, at) for path, at in times.items()}
        write_files({path: encode_image(path, picture) for path, picture in pictures.items()})
        return {
            "written": list(times),
            "times": ", ".join(f"{time:.3g}" for time in times.values()),
            "size": Size(*frame1.shape[:2]),
        }

    def _times(self) -> dict[Path, float]:
        """Return each file to write, and its time."""
        if self.time is not None and self.count is not None:
            raise InputError("give --time or -n, not both")
        if self.time is not None and not 0 <= self.time <= 1:
            raise InputError(f"--time lies between 0 (frame 1) and 1 (frame 2), got {self.time:g}")
        if self.count is None:
            return {self.output: 0.5 if self.time is None else self.time}
        stem, suffix, numbers = self.output.stem, self.output.suffix, range(1, self.count + 1)
        return {self.output.with_name(f"{stem}_{n}{suffix}"): n / (self.count + 1) for n in numbers}

    def _slow_motion(self, clip: str, factor: int) -> dict[str, Any]:
        """Write a clip `factor` times slower; return the summary."""
        from ..data.frames import check_source

        check_source(clip)
        check_weights([self.weights])

        from ..estimation.estimator import FlowSequence
        from ..video import (
            STILL_RATE,
            SlowMotion,
            SlowMotionFrames,
            check_rate,
            find_coding,
            open_source,
        )

        selection = self.select(1, 1.0, self.on_error or "stop")
        output, to_folder = self.output, self._check_output(clip)
        coding = None if to_folder and self.encoder is None else find_coding(output, self.encoder)
        source = open_source(clip, keep_depth=to_folder)
        _check_source(source)
        refuse_inputs([output], folders_of(source.files))
        rate = self.fps or source.rate or STILL_RATE
        check_rate(output, rate)
        made: list[Writer] = []

        def writers(parts: Path) -> "list[Writer]":
            rest = (parts, rate, factor, coding)
            made.append(
                SlowMotionFrames(output, factor) if to_folder else SlowMotion(output, *rest)
            )
            return made

        sequence = FlowSequence(self.load(), backward=True)
        summary = self.process(source, selection, sequence, writers, [output])
        return {**summary, "cuts_held": int(made[0].memory["cuts"])}

    def _check_output(self, clip: str) -> bool:
        """Refuse an output that cannot be written; return whether it is a folder."""
        from ..video import output_kind

        kind, output = output_kind(self.output), [self.output]
        if kind == "array":
            raise InputError(
                f"{self.output}: slow motion is written as a video or a folder of images"
            )
        is_folder = kind == "folder"
        files, folders = ([], output) if is_folder else (output, [])
        check_outputs(files, folders=folders, inputs=[Path(clip), self.weights])
        return is_folder


def _check_source(source: "Source") -> None:
    if source.live:
        raise InputError("a camera is not a clip; record it first, then slow it down")
    if source.scenes:
        raise InputError(
            "KITTI's pairs are not a clip: there is no motion from one pair to the next"
        )
