"""Commands about weights: `info`, `convert`, `calibrate` and `export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from ..errors import InputError, check_name, unknown_name
from . import options
from .inputs_outputs import check_outputs, find_photos
from .options import flag, optional, parse_size

if TYPE_CHECKING:
    from ..weights import Weights

FILE_FORMATS = {"onnx": ".onnx", "torch-export": ".pt2", "compiled": ".pt2"}
"""The ending of each format of `export`, the default of an ending first.

Listed here as well, so that torch is not imported.
"""
INPUT_KINDS = ("uint8", "float")
EXPORT_PRECISIONS = ("fp32", "fp16")


class Info(options.Settings):
    """Describe a weights file (config, parameters, metrics, hash), or this installation.

    Examples:
      dicl-flow info
      dicl-flow info my.safetensors --json
    """

    weights: str | None = Argument(None, help="Packaged name or .safetensors file.")

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """All but --quiet: this command only prints."""
        return {name: kind for name, kind in super().option_types().items() if name != "quiet"}

    def __call__(self) -> None:
        self.report(_installation() if self.weights is None else _weights(self.weights))


def _installation() -> dict[str, Any]:
    import torch

    from .._version import __version__
    from ..config import ModelConfig
    from ..estimation.compute import choose_compute
    from ..fence import machine_fences
    from ..weights import packaged_names, read_weights, resolve

    int8 = bool(packaged_names()) and bool(read_weights(resolve(None)).extremes)
    choices: dict[str, str] = {}
    for name, (value, reason) in choose_compute(ModelConfig(), int8=int8).choices().items():
        choices |= {name: value, f"{name}_because": reason}
    return {
        "dicl_flow": __version__,
        "torch": torch.__version__,
        **choices,
        "threads": torch.get_num_threads(),
        **machine_fences(),
        "packaged_weights": ", ".join(packaged_names()) or "none",
    }


def _weights(name: str) -> dict[str, Any]:
    from ..weights import load_model, read_weights, resolve

    path = resolve(name)
    weights = read_weights(path)

    from ..config import NORMAL
    from ..estimation.confidence import UNCALIBRATED
    from ..models import count_parameters

    config, model, calibration = weights.config, load_model(weights), weights.calibration
    calibrated = [*([NORMAL] if calibration else []), *weights.quality_calibrations]
    return {
        "file": str(path),
        "sha256": weights.sha256,
        "host": config.host,
        "matcher": config.matcher or "the host's own",
        "projection": config.projection,
        "context": config.context,
        "padding": config.padding,
        "max_pixels": config.max_pixels or "any number",
        "multiple": config.pad_multiple,
        **({"frame_size": list(config.frame_size)} if config.frame_size else {}),
        "levels": ", ".join(f"1/{level.stride} (radius {level.radius})" for level in config.levels),
        "reach": f"{config.reach[-1]} px per axis",
        "confidence": calibration.meaning if calibration else f"uncalibrated: {UNCALIBRATED}",
        "calibrated_for": ", ".join(calibrated) or "no quality",
        "int8": "prepared" if weights.extremes else "not prepared",
        "live": _parts_of_live(weights),
        "parameters": count_parameters(model),
        "of_them_at_inference": count_parameters(model, inference=True),
        **weights.about,
    }


def _parts_of_live(weights: "Weights") -> str:
    """Whether quality "live" has parts of its own in these weights, in words."""
    from ..config import LIVE

    config, live = weights.config, weights.live
    if not config.host_record.any_radius:
        return f"not with host {config.host}"
    smaller = config.smaller(LIVE.radii)
    text = ", ".join(f"radius {radius} at 1/{stride}" for stride, radius in smaller)
    if weights.trained_for(LIVE):
        return f"{text}, trained for it"
    other = "; its parts were trained for other radii" if live is not None else ""
    return f"{text}, cut out of the network, not trained for it{other}" if smaller else "as normal"


class Convert(options.Settings):
    """Convert a checkpoint of the original code to weights of this package, or shrink weights.

    Nothing in the checkpoint is executed, and every tensor in it is accounted for.

    Examples:
      dicl-flow convert ckpt_sintel.pth.tar -o sintel.safetensors
      dicl-flow convert runs/things/weights.safetensors -o things.safetensors --half
    """

    checkpoint: Path = Argument(..., help="The authors' .pth.tar or state dict, or .safetensors.")
    output: Path = options.output("The .safetensors file to write.")
    padding: str = Option("replicate", help="replicate, or white for the authors' KITTI weights.")
    half: bool = flag("--half", "Store float16, batch statistics in float32.")

    def __call__(self) -> None:
        from ..files import write_files
        from ..weights import encode_weights, halve, read_weights
        from ..weights.legacy import import_legacy

        check_outputs([self.output], inputs=[self.checkpoint], endings=[".safetensors"])
        if self.checkpoint.suffix == ".safetensors":
            weights = read_weights(self.checkpoint)
        else:
            weights = import_legacy(self.checkpoint, self.padding)
        write_files({self.output: encode_weights(halve(weights) if self.half else weights)})
        names = ("projection", "context", "padding")
        about = {name: getattr(weights.config, name) for name in names}
        self.report({"written": [self.output], "tensors": len(weights.tensors), **about})


class Calibrate(options.EstimateSettings):
    """Turn the confidence of weights into a probability, from errors on rendered scenes.

    The output holds the same weights with their calibration: one for each quality, fitted one
    after the other; and what precision int8 needs to start at once. The numbers printed are of
    scenes that were not used for the fit.

    Examples:
      dicl-flow calibrate -w runs/rendered/weights.safetensors -d rendered=PHOTOS -o my.safetensors
      dicl-flow calibrate -d rendered=procedural -o my.safetensors -n 16 --quality best
    """

    data: str = Option(
        ..., "--data", "-d", metavar="rendered=PHOTOS", help="Photographs, or 'procedural'."
    )
    output: Path = options.output("The .safetensors to write.")
    scenes: int = Option(
        64, "--scenes", "-n", min=1, help="Scenes to fit to; a third as many test the fit."
    )
    size: str = Option("512x384", help="WIDTHxHEIGHT of a scene.")
    threshold: float = Option(1.0, min=0.01, help="Errors up to this many px count as right.")
    seed: int = Option(1000, min=0, help="The same seed gives the same scenes.")

    def __call__(self) -> None:
        from ..evaluation import calibrate as fit

        check_outputs([self.output], inputs=[self.weights], endings=[".safetensors"])
        name, _, folder = self.data.partition("=")
        if name != "rendered" or not folder:
            allowed = "rendered=PHOTOS or rendered=procedural"
            raise InputError(f"--data must be {allowed}, got {self.data!r}")
        calibrated = fit(
            self.weights,
            find_photos(folder),
            size=parse_size("--size", self.size),
            progress=self.track,
            **self.chosen("quality", "scenes", "threshold", "seed"),
            **self.compute,
        )
        calibrated.save(self.output)
        summary = {
            "written": [self.output],
            "quality": self.quality,
            "confidence": calibrated.calibration.meaning,
            "scenes": self.scenes,
            "unseen_scenes": calibrated.unseen_scenes,
            "right": calibrated.right,
            "ause_of_entropy": calibrated.ause_of_entropy,
            **calibrated.judged,
        }
        self.report(summary)


class Export(options.Settings):
    """Write the whole estimator, from images to flow and confidence, as one file.

    Before it is written, the file is run and compared with the estimator in float32; a mean
    difference above 0.01 px, with fp16 0.02 px, is an error. The number of pairs is always free.
    The file is the plain network; the program that runs it chooses the device.

    With --format compiled the file is machine code for CPUs like this machine's, run by C++
    programs without Python. Compiling takes minutes and needs a C++ compiler.

    Examples:
      dicl-flow export --size 1024x436 -o flow.onnx
      dicl-flow export --dynamic -w my.safetensors -o flow.pt2
      dicl-flow export --size 640x360 --quality live --input float -o live.onnx
      dicl-flow export --size 640x360 --precision fp16 -o half.onnx
      dicl-flow export --size 640x360 --format compiled -o compiled.pt2
    """

    output: Path = options.output("File to write: .onnx or .pt2.")
    kind: str | None = optional("onnx, torch-export, compiled; default: by ending.", "--format")
    size: str | None = optional("The only image size it takes.", metavar="WIDTHxHEIGHT")
    dynamic: bool = flag("--dynamic", "The file will accept images of any size.")
    weights: options.Weights = None
    quality: options.Quality = "normal"
    input_kind: str = Option("uint8", "--input", help="uint8 (0 to 255), or float (0 to 1).")
    precision: str = Option("fp32", help="fp32, or fp16: the network in float16, half the size.")

    def __call__(self) -> None:
        check_name("input", self.input_kind, INPUT_KINDS)
        check_name("precision", self.precision, EXPORT_PRECISIONS)
        if self.kind is not None and self.kind not in FILE_FORMATS:
            raise unknown_name("format", self.kind, FILE_FORMATS)
        by_ending: dict[str, str] = {}
        for kind in FILE_FORMATS if self.kind is None else [self.kind]:
            by_ending.setdefault(FILE_FORMATS[kind], kind)
        check_outputs([self.output], inputs=[self.weights], endings=by_ending)
        if (self.size is not None) == self.dynamic:
            raise InputError("give either --size WIDTHxHEIGHT or --dynamic")
        frame = None if self.size is None else parse_size("--size", self.size)

        from ..files import write_files
        from ..weights import read_weights, resolve

        source = read_weights(resolve(self.weights))

        from ..estimation.estimator import load
        from ..estimation.export import INPUTS, OUTPUT, export

        about = {"weights.sha256": source.sha256, **source.about}
        estimator = load(self.weights, "cpu", "fp32", "plain", quality=self.quality)
        kind = by_ending[self.output.suffix.lower()]
        how = (self.input_kind, self.precision)
        data, difference = export(estimator, kind, frame, about, *how)
        write_files({self.output: data})
        summary = {
            "written": [self.output],
            "megabytes": len(data) / 1e6,
            "size": frame or "any",
            "format": kind,
            "precision": self.precision,
            "mean_difference_px": difference.mean,
            "max_difference_px": difference.maximum,
            "input": INPUTS[self.input_kind],
            "output": OUTPUT,
        }
        self.report(summary)
