"""Commands about weights: `info`, `convert`, `calibrate` and `export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..errors import InputError, unknown_name
from . import options
from .inputs_outputs import check_outputs, parse_photos
from .printing import parse_size, report

if TYPE_CHECKING:
    from ..weights import Weights

FILE_FORMATS = {"onnx": ".onnx", "torch-export": ".pt2"}
"""The ending of each format of `export`; listed here as well, so that torch is not imported."""


def info(
    weights: Annotated[str | None, Argument(help="Packaged name or .safetensors file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Describe a weights file (config, parameters, metrics, hash), or this installation.

    Examples:

      dicl-flow info

      dicl-flow info my.safetensors --json
    """
    values = _installation() if weights is None else _weights(weights)
    report(values, quiet=False, as_json=as_json)


def _installation() -> dict[str, Any]:
    import torch

    from .._version import __version__
    from ..config import ModelConfig
    from ..estimation.compute import choose_compute
    from ..weights import packaged_names

    choices = choose_compute(ModelConfig()).choices()
    return {
        "dicl_flow": __version__,
        "torch": torch.__version__,
        **{
            key: text
            for name, (value, reason) in choices.items()
            for key, text in ((name, value), (f"{name}_because", reason))
        },
        "threads": torch.get_num_threads(),
        "packaged_weights": ", ".join(packaged_names()) or "none",
    }


def _calibrated(weights: "Weights") -> list[str]:
    """Return the names of the qualities that the weights are calibrated for."""
    from ..config import NORMAL

    normal = [NORMAL] if weights.calibration else []
    return [*normal, *weights.quality_calibrations]


def _weights(name: str) -> dict[str, Any]:
    from ..weights import load_model, read_weights, resolve

    path = resolve(name)
    weights = read_weights(path)

    from ..estimation.confidence import UNCALIBRATED
    from ..models import count_parameters

    config, model = weights.config, load_model(weights)
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
        "levels": ", ".join(f"1/{level.stride} (radius {level.radius})" for level in config.levels),
        "reach": f"{config.reach[-1]} px per axis",
        "confidence": weights.calibration.meaning
        if weights.calibration
        else f"uncalibrated: {UNCALIBRATED}",
        "calibrated_for": ", ".join(_calibrated(weights)) or "no quality",
        "parameters": count_parameters(model),
        "of_them_at_inference": count_parameters(model, inference=True),
        **weights.about,
    }


class Convert(options.Settings):
    """Convert a checkpoint of the original code to weights of this package, or shrink weights.

    Nothing in the checkpoint is executed, and every tensor in it is accounted for.

    Examples:

      dicl-flow convert ckpt_sintel.pth.tar -o sintel.safetensors

      dicl-flow convert runs/things/weights.safetensors -o things.safetensors --half
    """

    checkpoint: Path = Argument(
        ..., help="The authors' .pth.tar or its state dict, or our .safetensors."
    )
    output: Path = Option(..., "--output", "-o", help="The .safetensors file to write.")
    padding: str = Option("replicate", help="replicate, or white for the authors' KITTI weights.")
    half: bool = Option(False, "--half", help="Store float16, batch statistics in float32.")

    def __call__(self) -> None:
        from ..files import write_files
        from ..weights import encode_weights, halve, read_weights
        from ..weights.legacy import import_legacy

        _check_weights_output(self.output, self.checkpoint)
        ours = self.checkpoint.suffix == ".safetensors"
        weights = (
            read_weights(self.checkpoint) if ours else import_legacy(self.checkpoint, self.padding)
        )
        write_files({self.output: encode_weights(halve(weights) if self.half else weights)})
        config = weights.config
        names = ("projection", "context", "padding")
        about = {name: getattr(config, name) for name in names}
        self.report({"written": [self.output], "tensors": len(weights.tensors), **about})


class Calibrate(options.ComputeSettings):
    """Turn the confidence of weights into a probability, from errors on rendered scenes.

    The output holds the same weights with their calibration: one for each quality, fitted one
    after the other. The numbers printed are of scenes that were not used for the fit.

    Examples:

      dicl-flow calibrate -w runs/rendered/weights.safetensors -d rendered=PHOTOS -o my.safetensors

      dicl-flow calibrate -d rendered=procedural -o my.safetensors -n 16 --quality best
    """

    data: str = Option(
        ..., "--data", "-d", metavar="rendered=PHOTOS", help="Photographs, or 'procedural'."
    )
    output: Path = Option(..., "--output", "-o", help="The .safetensors to write.")
    weights: options.Weights = None
    quality: options.Quality = "normal"
    scenes: int = Option(
        64, "--scenes", "-n", min=1, help="Scenes to fit to; a third as many test the fit."
    )
    size: str = Option("512x384", help="WIDTHxHEIGHT of a scene.")
    threshold: float = Option(1.0, min=0.01, help="Errors up to this many px count as right.")
    seed: int = Option(1000, min=0, help="The same seed gives the same scenes.")
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..evaluation import calibrate as fit

        _check_weights_output(self.output, self.weights)
        found = fit(
            self.weights,
            parse_photos(self.data),
            quality=self.quality,
            scenes=self.scenes,
            size=parse_size("--size", self.size),
            threshold=self.threshold,
            seed=self.seed,
            progress=self.track,
            **self.compute,
        )
        found.save(self.output)
        summary = {
            "written": [self.output],
            "quality": self.quality,
            "confidence": found.calibration.meaning,
            "scenes": self.scenes,
            "unseen_scenes": found.unseen_scenes,
            "right": found.right,
            "ause_of_entropy": found.ause_of_entropy,
            **found.judged,
        }
        self.report(summary)


def _check_weights_output(output: Path, source: Path | str | None) -> None:
    check_outputs([output], inputs=[source])
    if output.suffix != ".safetensors":
        raise InputError(f"{output}: the output ends in .safetensors")


class Export(options.Settings):
    """Write the whole estimator, from uint8 images to flow and confidence, as one file.

    Before it is written, the file is run and compared with the estimator; a mean difference
    above 0.01 px is an error. The number of pairs is always free. The file is the plain network in
    float32; the program that runs it chooses the device.

    Examples:

      dicl-flow export --size 1024x436 -o flow.onnx

      dicl-flow export --dynamic -w my.safetensors -o flow.pt2
    """

    output: Path = Option(..., "--output", "-o", help="File to write: .onnx or .pt2.")
    kind: str | None = Option(
        None, "--format", help="onnx or torch-export; default: by the file's ending."
    )
    size: str | None = Option(
        None, metavar="WIDTHxHEIGHT", help="The only image size that the file will accept."
    )
    dynamic: bool = Option(False, "--dynamic", help="The file will accept images of any size.")
    weights: options.Weights = None
    quality: options.Quality = "normal"

    def __call__(self) -> None:
        check_outputs([self.output], inputs=[self.weights])
        kind = self._format()
        if (self.size is not None) == self.dynamic:
            raise InputError("give either --size WIDTHxHEIGHT or --dynamic")
        frame = None if self.size is None else parse_size("--size", self.size)

        from ..files import write_files
        from ..weights import read_weights, resolve

        found = read_weights(resolve(self.weights))

        from ..estimation.estimator import load
        from ..estimation.export import INPUT, OUTPUT, export

        about = {"weights.sha256": found.sha256, **found.about}
        estimator = load(self.weights, "cpu", "fp32", "plain", quality=self.quality)
        data, difference = export(estimator, kind, frame, about)
        write_files({self.output: data})
        summary = {
            "written": [self.output],
            "megabytes": len(data) / 1e6,
            "size": frame or "any",
            "mean_difference_px": difference.mean,
            "max_difference_px": difference.maximum,
            "input": INPUT,
            "output": OUTPUT,
        }
        self.report(summary)

    def _format(self) -> str:
        """Return the format of a file by its ending, which must fit --format if that is given."""
        output, asked = self.output, self.kind
        if asked is not None and asked not in FILE_FORMATS:
            raise unknown_name("format", asked, FILE_FORMATS)
        for kind, suffix in FILE_FORMATS.items():
            if output.suffix == suffix and asked in (None, kind):
                return kind
        if asked is None:
            raise InputError(f"{output}: the output ends in {' or '.join(FILE_FORMATS.values())}")
        raise InputError(f"{output}: a file of format {asked} ends in {FILE_FORMATS[asked]}")
