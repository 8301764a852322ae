"""Export of the estimator to a file that other programs run: ONNX, torch.export, or compiled."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as tracing

from .._version import __version__
from ..errors import InputError
from ..ops import Size
from .compiled import describe_target, encode_compiled, open_compiled, require_compiler
from .estimator import FlowEstimator
from .half import in_half
from .inputs import demo_frames

TOLERANCES = {"fp32": 0.01, "fp16": 0.02}
"""px, mean: how much a file of each precision may differ from the estimator in float32."""
INPUTS = {
    "uint8": "image1, image2: (batch, 3, height, width) uint8, RGB, 0 ... 255",
    "float": "image1, image2: (batch, 3, height, width) float32, RGB, 0 ... 1",
}
"""What a file takes, by the name of its kind of input."""
OUTPUT = (
    "flow: (batch, 2, height, width) float32, px of the input, x right, y down, from image1 to "
    "image2; confidence: (batch, 1, height, width) float32 in [0, 1]"
)
_DEMO_SIZE = (384, 512)

Outputs = tuple[Tensor, Tensor]
Encoder = Callable[[ExportedProgram, dict[str, str]], bytes]
Runner = Callable[[Tensor, Tensor], Sequence[Tensor]]


class Difference(NamedTuple):
    """How far the flow of a file is from that of the estimator, in px."""

    mean: float
    maximum: float


class ExportedEstimator(nn.Module):
    """From two images to their flow: normalising, padding, network, cropping."""

    def __init__(self, estimator: FlowEstimator, input_kind: str) -> None:
        super().__init__()
        self.network, self.white = estimator.model, 255 if input_kind == "uint8" else 1
        self.estimate = estimator.pipeline.estimate_whole  # a file cannot ask for memory

    def forward(self, image1: Tensor, image2: Tensor) -> Outputs:
        """Two (B, 3, H, W) images of the kind -> flow (B, 2, H, W), confidence (B, 1, H, W)."""
        both = self.estimate(image1.float() / self.white, image2.float() / self.white)
        return both[:, :2], both[:, 2:]

    def examples(self, size: Size, count: int = 1) -> tuple[Tensor, Tensor]:
        """Two images of the kind: the demo's pair, scaled to `size`."""
        frames = demo_frames(size, count)
        return frames if self.white == 255 else (frames[0] / 255, frames[1] / 255)


def export(
    estimator: FlowEstimator,
    kind: str,
    size: Size | None,
    about: dict[str, str],
    input_kind: str = "uint8",
    precision: str = "fp32",
) -> tuple[bytes, Difference]:
    """Return the bytes of a file for images of `size` (None: any), and how far its flow is off.

    `estimator` is plain, float32, on the CPU; `kind` is "onnx", "torch-export" or "compiled";
    `about` is added to the metadata of the file; `input_kind` is one of `INPUTS`, `precision` one
    of `TOLERANCES`. The number of pairs is free.
    A file whose flow differs from the estimator's is an `InputError`.
    """
    config, quality = estimator.model.config, estimator.quality
    encode, open_file = _prepare(kind)
    _check_size(estimator, size)
    module = written = ExportedEstimator(estimator, input_kind)
    if precision == "fp16":
        written = ExportedEstimator(_in_float16(estimator), input_kind)
        _check_float16(module, written, size)
    metadata = {
        "dicl_flow.version": __version__,
        "dicl_flow.config": config.to_json(),
        "dicl_flow.quality": quality.name,
        "dicl_flow.precision": precision,
        "input": INPUTS[input_kind],
        "output": OUTPUT,
        **({"dicl_flow.target": describe_target()} if kind == "compiled" else {}),
        **about,
    }
    with _silenced():
        data = encode(_trace(written, size), metadata)
    multiple = config.pad_multiple
    # of the free sizes: one that is padded, and one that is not, with another number of pairs
    free = [(1, (multiple - 3, multiple + 5)), (2, (multiple, multiple))]
    difference = _compare(module, open_file(data), [(2, size)] if size else free)
    if not difference.mean <= TOLERANCES[precision]:
        raise InputError(
            f"the {kind} file's flow differs from the estimator's by {difference.mean:.3g} px on "
            f"average, more than {TOLERANCES[precision]}; nothing was written. This is a bug of "
            f"the exporter or of the runtime: please report it with their versions"
        )
    return data, difference


def _prepare(kind: str) -> tuple[Encoder, Callable[[bytes], Runner]]:
    """Return what writes and what opens files of a kind, or say what is missing for it."""
    if kind == "onnx":
        _require_onnx()
        return _encode_onnx, _open_onnx
    if kind == "compiled":
        require_compiler()
        return encode_compiled, open_compiled
    return _encode_torch_export, _open_torch_export


def _check_size(estimator: FlowEstimator, size: Size | None) -> None:
    """Refuse a file for any size if frames are scaled."""
    config, quality = estimator.model.config, estimator.quality
    fixed = config.max_pixels or config.frame_size
    if size is not None or (not fixed and quality.scales == (1.0,)):
        return
    who = f"quality {quality.name!r} scales frames"
    if config.max_pixels:
        who = f"these weights scale frames of more than {config.max_pixels} px down"
    elif config.frame_size:
        who = "these weights resize all frames to one size"
    raise InputError(
        f"{who}, which only a file for one size can do; give `size`, that of the frames"
    )


def _in_float16(estimator: FlowEstimator) -> FlowEstimator:
    """The same estimator with the network in float16; all around it stays float32."""
    fed = (estimator.calibration, estimator.quality)
    how = ("cpu", "fp32", "plain", None)  # "fp32": the network itself says what is rounded
    full_size = estimator.plan.full_size
    return FlowEstimator(in_half(estimator.model), *how, *fed, full_size=full_size)


def _check_float16(module: ExportedEstimator, half: ExportedEstimator, size: Size | None) -> None:
    """Refuse a network that loses too much in float16, by torch, which computes all of it so.

    onnxruntime may compute in float32 what it lacks in float16, and overflows less than others.
    """
    difference = _compare(module, half, [(1, size or _DEMO_SIZE)])
    if not difference.mean <= TOLERANCES["fp16"]:
        raise InputError(
            f"in float16 the flow of these weights differs from that in float32 by "
            f"{difference.mean:.3g} px on average, more than {TOLERANCES['fp16']}; nothing was "
            f"written: use `precision='fp32'`"
        )


def _trace(module: ExportedEstimator, size: Size | None) -> ExportedProgram:
    free: dict[int, Dim] = {0: Dim("batch", min=1)}
    if size is None:
        free |= {2: Dim("height", min=1), 3: Dim("width", min=1)}
    # Tracing would fix sizes of one, which are not special here: a coarsest map of 1x1, one pair,
    # a border without padding.
    oblivious = tracing.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with torch.no_grad(), oblivious:
        example = module.examples(size or (100, 150), count=2)
        return torch.export.export(module.eval(), example, dynamic_shapes=(free, free))


def _compare(module: ExportedEstimator, run: Runner, tried: list[tuple[int, Size]]) -> Difference:
    distances = []
    for count, size in tried:
        frames = module.examples(size, count)
        with torch.no_grad():
            expected, found = module(*frames), run(*frames)
        if [output.shape for output in found] != [output.shape for output in expected]:
            frame = f"{size[1]}x{size[0]}"
            raise InputError(f"the file gives a flow of shape {tuple(found[0].shape)} at {frame}")
        distances.append((found[0] - expected[0]).norm(dim=1))
    # not Python's max, which can lose NaN
    return Difference(
        float(torch.stack([distance.mean() for distance in distances]).max()),
        float(torch.stack([distance.max() for distance in distances]).max()),
    )


def _require_onnx() -> None:
    """Refuse before minutes of work, not after them."""
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("ONNX needs other packages: pip install 'dicl-flow[export]'") from None


def _encode_onnx(program: ExportedProgram, metadata: dict[str, str]) -> bytes:
    import onnx_ir

    exported = torch.onnx.export(
        program,
        input_names=["image1", "image2"],
        output_names=["flow", "confidence"],
        opset_version=18,  # the first with resizing that averages
        dynamo=True,
        verbose=False,
    )
    assert exported is not None  # not written to a file
    for value in [*exported.model.graph.inputs, *exported.model.graph.outputs]:
        assert value.shape is not None
        # "height" instead of "s16", or of the formula of an output
        free = zip(value.shape, ("batch", "channels", "height", "width"), strict=True)
        value.shape = onnx_ir.Shape([n if isinstance(n, int) else name for n, name in free])
    exported.model.metadata_props.update(metadata)
    return exported.model_proto.SerializeToString()


def _open_onnx(data: bytes) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(image1: Tensor, image2: Tensor) -> Outputs:
        outputs = session.run(None, {"image1": image1.numpy(), "image2": image2.numpy()})
        flow, confidence = (torch.from_numpy(np.asarray(output)) for output in outputs)
        return flow, confidence

    return run


def _encode_torch_export(program: ExportedProgram, metadata: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"dicl_flow.json": json.dumps(metadata)})
    return buffer.getvalue()


def _open_torch_export(data: bytes) -> Runner:
    return torch.export.load(io.BytesIO(data)).module()


@contextmanager
def _silenced() -> Iterator[None]:
    """Silence the exporters, which address developers of torch; users rely on the check."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch._inductor")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
