"""Commands for one pair or one flow file: `demo`, `flow`, `show` and `warp`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError
from . import options
from .command import Parts, preload_cuda, without_collection
from .inputs_outputs import (
    STANDARD,
    assumed,
    check_outputs,
    check_weights,
    describe_kept,
    read_frames,
    read_plates,
    read_vectors,
    refuse_two_streams,
    suffix_of,
)
from .options import Size, nothing_written, optional

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator, FlowResult
    from ..files import Array


class Demo(options.ComputeSettings):
    """Estimate and draw the flow of two packaged pairs: a film, and a rendered scene with truth.

    Examples:
      dicl-flow demo
      dicl-flow demo -o pictures --weights my.safetensors --device cuda
    """

    output: Path = options.output("Folder for the results.", Path("dicl-flow-demo"), "DIR")
    weights: options.Weights = None

    def __call__(self) -> None:
        from ..data import demo_pairs
        from ..evaluation import draw_demo, score_pair
        from ..files import encode_flow, encode_image, write_files

        check_outputs(folders=[self.output])
        check_weights(self.weights)
        estimator = self.load()
        contents: dict[Path, bytes] = {}
        numbers: dict[str, float] = {}
        for pair in demo_pairs():
            start = perf_counter()
            result = estimator(pair.image1, pair.image2)
            numbers[f"{pair.name}_seconds"] = perf_counter() - start
            if pair.truth is not None:
                numbers[f"{pair.name}_epe"] = score_pair(pair, result.flow).values["epe"]
            flow_file, picture = self.output / f"{pair.name}.flo", self.output / f"{pair.name}.png"
            contents[flow_file] = encode_flow(flow_file, result.flow)
            contents[picture] = encode_image(picture, draw_demo(pair, result))
        write_files(contents)
        self.report({"written": list(contents), "device": estimator.device, **numbers})


class Flow(options.EstimateSettings):
    """Estimate the flow from IMAGE1 to IMAGE2.

    Examples:
      dicl-flow flow a.png b.png -o flow.flo --image flow.png
      dicl-flow flow a.png b.png -o kitti.png --weights my.safetensors --device cuda
      dicl-flow flow a.png b.png -o flow.flo --quality best
      dicl-flow flow a.png b.png -o flow.flo --backward backward.flo --occlusion hidden.png
      cat frame2.jpg | dicl-flow flow frame1.jpg - -o - --format npy > flow.npy
    """

    image1: Path = Argument(..., help="First frame; - is the standard input.")
    image2: Path = Argument(..., help="Second frame, of the same size, or -.")
    output: Path | None = options.output(
        "Flow file: .flo, .png (KITTI), .pfm, .npz, .npy, .flo5, .exr; or -.", None
    )
    image: Path | None = optional("Colour wheel picture.")
    overlay: Path | None = optional("Frame 1 coloured by its flow.")
    arrows: Path | None = optional("Frame 1 with arrows.")
    confidence: Path | None = optional("Confidence; white is confident.")
    backward: Path | None = optional("Flow file of the backward flow, frame 2 to frame 1.")
    occlusion: Path | None = optional("White where frame 2 hides a pixel of frame 1.")
    initial: Path | None = optional("Flow file to start from; coarse levels are skipped.")
    min_confidence: options.MinConfidence = None
    color_space: options.ColorSpace = None
    layer: options.Layer = None
    full_size: options.FullSize = False
    maximum: options.Maximum = None
    key: options.Key = False
    file_format: options.FlowFormat = None
    verbose: bool = Option(
        False, "--verbose", "-v", help="Print what was chosen on this machine, and why."
    )

    def __call__(self) -> None:
        from ..files import write_files

        with nothing_written():
            parts, contents, stream, summary = self._estimate()
        write_files(contents)
        if self._piped:
            sys.stdout.buffer.write(stream)
            sys.stdout.buffer.flush()
        parts.end("write")
        if self.as_json:
            summary["parts"] = parts.seconds
        self.report(summary, to_stderr=self._piped)
        if self.verbose:
            typer.echo(f"{'times':<9}  {parts}", err=True)

    def _estimate(self) -> tuple[Parts, dict[Path, bytes], bytes, dict[str, Any]]:
        """Return the times so far, the files to write, the standard output, and the summary."""
        from ..files import encode_flow, read_flow

        reading = self.reading
        wanted, ending = self._check()
        frames = read_frames(self.image1, self.image2, reading=reading)
        initial = None if self.initial is None else read_flow(self.initial)
        check_weights(self.weights)

        parts = Parts()
        preload_cuda(self.device)
        with without_collection():
            import torch  # noqa: F401 - apart from what imports it: most of the time is spent here

            parts.end("torch")
            import dicl_flow.estimation.estimator  # noqa: F401 - it imports all that `load` needs

            parts.end("import")
            estimator = self.load()
        if self.verbose:
            _explain(estimator, frames[0])
        parts.take(estimator.load_seconds)
        how: dict[str, Any] = {"backward": bool(self.backward or self.occlusion)}
        with self.estimating() as progress:
            result = estimator(*frames, **how, initial=initial, progress=progress)
        result = self._masked(result)
        parts.end("estimate")
        stream = encode_flow(f"stdout{ending}", result.flow) if self._piped else b""
        summary = {
            "written": [*([self.output] if self._piped else []), *wanted],
            **self._summary(estimator, result),
            "seconds": parts.seconds["estimate"],
            **assumed([self.image1, self.image2], reading),
        }
        if self.arrows is not None:
            summary |= _arrows(result.flow, self.maximum)
        if result.occlusion is not None:
            summary["occluded"] = float(result.occlusion.mean())
        return parts, self._contents(result, frames[0]), stream, summary

    @property
    def _piped(self) -> bool:
        return self.output == STANDARD

    def _check(self) -> tuple[list[Path], str]:
        """Return the files to write, and the extension of a flow for the standard output."""
        from ..pictures.visualize import DRAWINGS

        ending = ""
        if self._piped:
            if self.as_json:
                raise InputError("-o - and --json both need the standard output; leave one out")
            if sys.stdout.isatty():
                raise InputError("-o - writes bytes, not text for a terminal: redirect to a file")
            ending = suffix_of(self.file_format)
        elif self.file_format is not None:
            raise InputError("--format is for -o - only; a file has the format of its extension")
        wanted = check_outputs(
            flows=[None if self._piped else self.output, self.backward],
            pictures=[*self.chosen(*DRAWINGS).values()],
            inputs=[self.image1, self.image2, self.initial, self.weights],
        )
        _check_key(self.key, image=self.image, overlay=self.overlay, arrows=self.arrows)
        if not wanted and not self._piped:
            raise InputError("nothing to write; give -o FLOW, --image PNG or another output")
        if self.verbose and self.quiet:
            raise InputError("--verbose and --quiet contradict each other; leave one out")
        return wanted, ending

    def _masked(self, result: "FlowResult") -> "FlowResult":
        if self.min_confidence is None:
            return result
        highest = float(result.confidence.max())
        if highest < self.min_confidence:
            least = f"{self.min_confidence:g}"
            raise InputError(f"no pixel has a confidence of {least}; the highest is {highest:.3f}")
        return result.masked(self.min_confidence)

    def _contents(self, result: "FlowResult", image1: "Array") -> dict[Path, bytes]:
        """Return the bytes of every file that was asked for."""
        from ..files import encode_flow
        from ..pictures.visualize import DRAWINGS

        drawn = {name: getattr(result, name) for name in ("flow", "confidence", "occlusion")}
        flows = {None if self._piped else self.output: result, self.backward: result.backward}
        contents = {path: encode_flow(path, e.flow) for path, e in flows.items() if path and e}
        return contents | _pictures(
            self.chosen(*DRAWINGS), {"image1": image1, **drawn}, self.maximum, key=self.key
        )

    def _summary(self, estimator: "FlowEstimator", result: "FlowResult") -> dict[str, Any]:
        from ..estimation.estimator import computed
        from ..pictures.visualize import flow_statistics

        height, width = result.flow.shape[:2]
        statistics = flow_statistics(result.flow)
        return {
            "size": Size(height, width),
            **computed(estimator, (height, width)),
            **{name: statistics[name] for name in ("known", "mean_length", "max_length")},
            "mean_confidence": float(result.confidence.mean()),
            "calibrated": estimator.calibration is not None,
            "quality": self.quality,
            **options.compute_summary(estimator),
        }


def _explain(estimator: "FlowEstimator", image1: "Array") -> None:
    """Print to stderr, so that --json stays one object."""
    from ..estimation.estimator import explain_frame

    height, width = image1.shape[:2]
    frame = explain_frame(estimator, (height, width))
    choices = {**estimator.compute.choices(), "frame": frame, "path": estimator.engine.once()}
    for name, choice in choices.items():
        typer.echo(f"{name:<9}  {choice.value}: {choice.reason}", err=True)


def _check_key(key: bool, **pictures: Path | None) -> None:
    """Refuse a key without a picture to draw it on."""
    if key and not any(pictures.values()):
        names = " or ".join(f"--{name}" for name in pictures)
        raise InputError(f"--key needs a picture to be drawn on: give {names}")


def _pictures(
    paths: Mapping[str, Path | None], drawn: Mapping[str, Any], maximum: float | None, *, key: bool
) -> dict[Path, bytes]:
    """Return the bytes of each kind of picture with a path; `drawn` as `draw_estimate` takes it."""
    from ..files import encode_image
    from ..pictures.keys import add_key
    from ..pictures.visualize import default_maximum, draw_estimate

    contents = {}
    for kind, path in paths.items():
        if path is not None:
            longest = maximum or default_maximum(kind, drawn["flow"])
            picture = draw_estimate(kind, **drawn, maximum=longest)
            picture = add_key(kind, picture, longest) if key else picture
            contents[path] = encode_image(path, picture)
    return contents


def _arrows(flow: "Array", maximum: float | None) -> dict[str, Any]:
    """Return what to print of the lengths of arrows."""
    from ..pictures.visualize import LONGEST_ARROW, arrow_scale, full_arrow, full_color

    full = maximum or full_arrow(flow)
    said: dict[str, Any] = {"arrow_scale": arrow_scale(flow.shape, full)}
    if full_color(flow) > (longest := LONGEST_ARROW * full):
        said["arrows_cut"] = f"motion beyond {longest:.3g} px has arrows of that length"
    return said


class Show(options.ReadSettings):
    """Print the statistics of a flow file, or of the difference of two, and draw it.

    Examples:
      dicl-flow show truth.flo -o truth.png --max 20
      dicl-flow show flow.flo -o colours.png --arrows arrows.png --key
      dicl-flow show flow.flo --arrows arrows.png --frame frame1.png
      dicl-flow show flow.flo --difference truth.flo -o error.png --key
    """

    flow: Path = Argument(..., help="Flow: .flo, .png (KITTI), .pfm, .npz, .npy, .flo5, .exr or -.")
    output: Path | None = options.output("Colour wheel picture to write.", None)
    arrows: Path | None = optional("Picture with arrows to write.")
    frame: Path | None = optional("Image to draw the arrows on; default: black.", metavar="IMAGE")
    difference: Path | None = optional("Flow to subtract from FLOW first; or -.", metavar="OTHER")
    maximum: options.Maximum = None
    key: options.Key = False
    file_format: options.FlowFormat = None

    def __call__(self) -> None:
        from ..files import write_files
        from ..pictures.visualize import flow_statistics

        outputs, inputs = [self.output, self.arrows], [self.flow, self.difference, self.frame]
        wanted = check_outputs(pictures=outputs, inputs=inputs)
        _check_key(self.key, output=self.output, arrows=self.arrows)
        if self.frame is not None and self.arrows is None:
            raise InputError("--frame is what arrows are drawn on: give --arrows PNG too")
        vectors = self._read()
        ground = self._ground(Size(*vectors.shape[:2]))
        summary: dict[str, Any] = {"file": str(self.flow), "size": Size(*vectors.shape[:2])}
        if self.difference is not None:
            summary["minus"] = str(self.difference)
        summary |= flow_statistics(vectors)
        if self.arrows is not None:
            summary |= _arrows(vectors, self.maximum)
        drawn = {"image1": ground, "flow": vectors, "confidence": ground[..., 0]}
        paths = {"image": self.output, "arrows": self.arrows}
        write_files(_pictures(paths, drawn, self.maximum, key=self.key))
        self.report({**summary, "written": wanted})

    def _read(self) -> "Array":
        """Return the flow, or what is left of it after the other one is subtracted."""
        if self.difference is None:
            return read_vectors(self.flow, self.file_format)
        paths = (self.flow, self.difference)
        refuse_two_streams(paths)
        first, second = (
            read_vectors(path, None if STANDARD in paths and path != STANDARD else self.file_format)
            for path in paths
        )
        if first.shape != second.shape:
            sizes = [Size(*flow.shape[:2]) for flow in (first, second)]
            raise InputError(
                f"both flows must have one size; {paths[0]} is {sizes[0]}, {paths[1]} is {sizes[1]}"
            )
        return first - second

    def _ground(self, size: Size) -> "Array":
        """Return the picture on which arrows are drawn, of the size of the flow."""
        import numpy as np

        height, width = size
        if self.frame is None:
            return np.zeros((height, width, 3), np.uint8)
        (image,) = read_frames(self.frame)
        found = Size(*image.shape[:2])
        if found != size:
            raise InputError(f"{self.frame} must have the size of the flow, {size}, got {found}")
        return image


class Warp(options.ReadSettings):
    """Warp the second frame along the flow, so that it looks like the first.

    Pixels whose flow leaves the frame or is unknown are black. Where frame 2 hides a part of
    frame 1, what hides it appears twice. 16 bits are kept in .png and .tif, values above 1
    in .exr, and alpha in all of them; what is black is transparent then.

    Examples:
      dicl-flow warp frame2.png flow.flo -o warped.png --mask inside.png
      dicl-flow warp plate2.exr flow.exr -o warped.exr
    """

    image2: Path = Argument(..., help="Second frame; - is the standard input.")
    flow: Path = Argument(..., help="Flow from frame 1 to frame 2, or -.")
    output: Path = options.output("Picture to write.")
    mask: Path | None = optional(
        "Mask, black where the flow leaves the frame or is unknown.", metavar="PNG"
    )
    color_space: options.ColorSpace = None
    alpha: options.Alpha = None
    layer: options.Layer = None
    file_format: options.FlowFormat = None

    def __call__(self) -> None:
        import numpy as np

        from ..files import encode_image, encode_plate, write_files

        reading = self.reading
        refuse_two_streams([self.image2, self.flow])
        inputs = [self.image2, self.flow]
        check_outputs(plates=[self.output], pictures=[self.mask], inputs=inputs)
        (plate,) = read_plates(self.image2, reading=reading)
        vectors = read_vectors(self.flow, self.file_format)

        from ..estimation.warping import warp

        warped = plate.with_values(warp(plate.values, vectors))
        inside = warp(np.ones(vectors.shape[:2]), vectors) > 0
        contents = {self.output: encode_plate(self.output, warped)}
        if self.mask is not None:
            contents[self.mask] = encode_image(self.mask, np.where(inside, 255, 0).astype(np.uint8))
        write_files(contents)
        size, share = Size(*inside.shape), float(inside.mean())
        kept = {**assumed([self.image2], reading), **describe_kept(plate, self.output)}
        self.report({"written": list(contents), "size": size, "inside": share, **kept})
