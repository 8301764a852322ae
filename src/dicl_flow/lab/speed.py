"""What `dicl-flow bench` measures: every path on every case, compared with the plain path.

Also other methods on the same frames, and the first result of fresh processes; with tables and a
figure. Before that: the clock, the peak memory, the speed of the machine, the work of a network.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

import copy
import json
import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import NORMAL, QUALITIES, ModelConfig, Quality, find_quality
from ..errors import InputError, counted
from ..estimation.compute import (
    DTYPES,
    choose_compute,
    gpu_name,
    instructions,
    return_freed_memory,
)
from ..estimation.estimator import FlowEstimator
from ..estimation.inputs import Feeding
from ..evaluation import dis
from ..files import Array, encode_image, write_files
from ..models import FlowNetwork, InitialFlow, build, with_radii
from ..models.matching import MatchingNet, PairwiseMatcher
from ..pictures.figures import draw_figure, encode_figure
from ..weights import load_model, read_weights, resolve

COMPILED = "compiled"
Call: TypeAlias = Callable[[], object]
_INSTEAD = "measure without the compiled network"
_WARM_UP = 2  # calls
_PROCESS = Path("/proc/self")
_RAFT_MULTIPLE = 8  # of the sides of its frames
# Linux has only numbers for ARM's processors
_ARM_PARTS = {"0xd0c": "ARM Neoverse-N1", "0xd40": "ARM Neoverse-V1", "0xd49": "ARM Neoverse-N2"}
HEADINGS = (
    *("size", "batch", "path", "start s", "ms", "GiB"),
    *("times plain", "mean px", "max px", "of peak"),
)
LEGEND = """\
start s: seconds from the loaded network to the first result
times plain: how many times as fast as plain fp32
mean px, max px: distance of the flow from that of plain fp32
of peak: share of the speed that this machine's arithmetic and memory would allow"""
PEERS_LEGEND = {
    "dis": 'OpenCV\'s dense inverse search, "medium", on the CPU',
    "raft": "torchvision's raft_large with random weights; only the times can be compared",
}
_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")  # folders of compiled kernels
FIRST_COLUMNS = (
    *("torch", "import", "weights", "prepare", "estimate", "write"),  # as `flow` names them
    *("other", "total", "beyond_torch", "cpu"),
)
FIRST_LEGEND = """\
Seconds of `dicl-flow flow` in a fresh process; medians.
cache: whether Triton's kernels had been compiled before; it has none on a CPU
torch, import: the imports of torch and of this package
prepare: the network that computes, on its device
other: the start of Python, the command line, reading the frames, the end of Python
beyond torch: total without the import of torch
cpu: seconds of all processor cores together"""


def median_seconds(call: Call, device: torch.device, repeats: int) -> float:
    """The median time of `repeats` calls after a warm-up."""
    for _ in range(_WARM_UP):
        call()
    return median(_seconds(call, device) for _ in range(repeats))


def _seconds(call: Call, device: torch.device) -> float:
    if device.type != "cuda":
        start = perf_counter()
        call()
        return perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000


class PeakMemory:
    """Peak memory while it is open, in bytes, minus what was in use before; None: unknown."""

    def __init__(self, device: torch.device) -> None:
        self.bytes: int | None = None
        self.device = device

    def __enter__(self) -> "PeakMemory":
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        elif _PROCESS.is_dir():
            return_freed_memory()
            (_PROCESS / "clear_refs").write_text("5")
        self._before = self._peak()
        return self

    def __exit__(self, *_: object) -> None:
        peak = self._peak()
        self.bytes = None if peak is None or self._before is None else peak - self._before

    def _peak(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device)  # graphs included
        if not _PROCESS.is_dir():
            return None
        lines = (_PROCESS / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@dataclass
class Work:
    """Floating-point operations, and numbers that convolutions read and write."""

    operations: float = 0
    numbers: float = 0

    def least_seconds(self, rates: tuple[float, float], dtype: torch.dtype) -> float:
        """Time at the machine's peak rates: of all operations or all traffic, the longer one."""
        return max(self.operations / rates[0], self.numbers * dtype.itemsize / rates[1])


def count_work(
    config: ModelConfig, batch: int, size: tuple[int, int], quality: Quality = QUALITIES[NORMAL]
) -> Work:
    """Count the convolutions of `batch` pairs of (height, width), with the first layer factored."""
    work = Work()
    with torch.device("meta"):
        model = build(config).eval()
    repeats = {  # factored, these layers run once instead of once for each displacement
        matcher.net.first.conv: (2 * matcher.radius + 1) ** 2
        for matcher in model.modules()
        if isinstance(matcher, PairwiseMatcher) and isinstance(matcher.net, MatchingNet)
    }

    def count(layer: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pixels = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else output
        positions, often = pixels.numel() // pixels.shape[1], repeats.get(layer, 1)
        work.operations += 2 * positions * layer.weight.numel() / often
        work.numbers += inputs[0].numel() / often + output.numel() + layer.weight.numel()

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Conv3d):
            layer.register_forward_hook(count)
    for number, scale in enumerate(quality.scales):
        sides = Feeding.of(config, scale).seen(size)
        with torch.no_grad(), torch.device("meta"):
            image, flow = torch.empty(batch, 3, *sides), torch.empty(batch, 2, *sides)
            model(image, image, InitialFlow(flow, quality.start) if number else None)
    return work


def machine_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Measure operations per second of a matrix product and bytes per second of a copy."""
    # a matrix and a copy that keep the device busy
    side, mebibytes = (8192, 256) if device.type == "cuda" else (1024, 64)
    if device.type == "cpu" and dtype == torch.float16:
        dtype = torch.float32  # most layers; torch takes seconds for such a product of float16
    matrix = torch.randn(side, side, device=device).to(dtype)
    source = torch.empty(mebibytes << 20, dtype=torch.uint8, device=device)
    product = median_seconds(lambda: matrix @ matrix, device, repeats=10)
    copy = median_seconds(source.clone, device, repeats=10)
    return 2 * side**3 / product, 2 * source.numel() / copy


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The device by name, its threads and the version of torch."""
    name, threads = gpu_name(device) or _processor(), torch.get_num_threads()
    return {"torch": torch.__version__, "device": name, "threads": threads}


def _processor() -> str:
    """The name of the processor (Linux) or its kind, its instructions (x86) and its threads."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    parts = [line.partition(":") for line in lines]
    about = {name.strip(): value.strip() for name, _, value in parts}
    name = about.get("model name") or _ARM_PARTS.get(about.get("CPU part", ""), platform.machine())
    found = instructions()
    return f"{name}{found and f' with {found}'}, {counted(torch.get_num_threads(), 'thread')}"


def open_network(
    weights: str | None, quality: Quality, host: str | None
) -> tuple[FlowNetwork, dict[str, Any]]:
    """Load weights, for frames that they would scale down too; or a `host` with random ones.

    The second value has options of `FlowEstimator`.
    """
    if host is not None:
        torch.manual_seed(0)
        config = ModelConfig(host=host)
        quality.check_for(config)
        return with_radii(build(config), quality.radii), {"quality": quality}
    stored = read_weights(resolve(weights))
    # resized as these weights ask: padded, scaled frames would get more pixels
    model = load_model(replace(stored, config=replace(stored.config, max_pixels=0)), quality)
    calibration = stored.calibration_for(quality)
    return model, {"quality": quality, "calibration": calibration, "extremes": stored.extremes}


def choose_ways(
    paths: Iterable[str], config: ModelConfig, device: torch.device, *, int8: bool = False
) -> list[tuple[str, str]]:
    """Read each BACKEND-PRECISION, resolve "auto" as `choose_compute` does, drop duplicates."""
    ways = []
    for path in paths:
        backend, dash, precision = path.partition("-")
        if not dash:
            raise InputError(f"`path` must be BACKEND-PRECISION, such as fast-fp16, got {path!r}")
        compiled = backend == COMPILED
        if compiled:
            check_compiler(device)
        wanted = (str(device), precision, "fast" if compiled else backend)
        chosen = choose_compute(config, *wanted, int8=int8 and not compiled)
        ways.append((backend if compiled else chosen.backend, chosen.precision))
    return list(dict.fromkeys(ways))


def check_compiler(device: torch.device) -> None:
    """Refuse what torch.compile cannot do, before anything is measured."""
    if device.type == "cuda":
        if find_spec("triton") is None:
            raise InputError(f"torch.compile needs Triton on a GPU; install it, or {_INSTEAD}")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise InputError(
            f"torch.compile needs a C++ compiler, which was not found; install g++ or clang++, set "
            f"CXX to one, or {_INSTEAD}"
        ) from None


def compile_network(model: FlowNetwork, device: torch.device) -> FlowNetwork:
    """Return a copy of `model` that is compiled when it is first called, for one shape.

    Inductor treats the weights as constants (freezing), so that it can fold and reorder them as
    the accelerated network does; on a GPU it also records CUDA graphs.
    """
    torch.compiler.reset()  # else the sizes measured before count towards the limit of recompiling
    compiled = copy.deepcopy(model)
    options = {"freezing": True, "triton.cudagraphs": device.type == "cuda"}
    compiled.compile(dynamic=False, options=options)
    return compiled


@contextmanager
def explained() -> Iterator[None]:
    """Say in one sentence that the compiler failed."""
    from torch._dynamo.exc import BackendCompilerFailed

    try:
        yield
    except BackendCompilerFailed as error:
        reason = str(error.inner_exception).strip().partition("\n")[0]
        raise InputError(f"torch.compile failed here ({reason}); {_INSTEAD}") from error


class Method(NamedTuple):
    """Our network with one backend, or another method."""

    name: str
    precision: str
    device: torch.device
    prepare: Callable[[Tensor, Tensor], Call | None]
    """Two (B, 3, H, W) in [0, 1], on that device -> what is to be timed; None: it lacks memory."""


def find_peers(device: torch.device, precisions: Iterable[str]) -> list[Method]:
    """OpenCV's DIS, on the CPU, and torchvision's RAFT if it is there; on CPUs in float32."""
    peers = [Method("dis", "uint8", torch.device("cpu"), _prepare_dis)]
    if find_spec("torchvision") is not None:
        names = precisions if device.type == "cuda" else ["fp32"]
        peers += [Method("raft", name, device, partial(_prepare_raft, name)) for name in names]
    return peers


def _prepare_dis(*images: Tensor) -> Call:
    method, frames = dis(), [*map(_to_uint8, images)]
    return lambda: [*map(method, *frames)]


def _to_uint8(images: Tensor) -> Array:
    """(B, 3, H, W) in [0, 1] -> (B, H, W, 3) uint8."""
    return (255 * images).round().byte().permute(0, 2, 3, 1).numpy()


def _prepare_raft(precision: str, *images: Tensor) -> Call:
    """Torchvision's large RAFT with random weights: it takes as long as with trained ones."""
    from torchvision.models.optical_flow import raft_large

    device, dtype = images[0].device, DTYPES[precision]
    network = raft_large(weights=None, progress=False).to(device).eval()
    height, width = images[0].shape[-2:]

    @torch.inference_mode()
    def run() -> Tensor:
        sides = (0, -width % _RAFT_MULTIPLE, 0, -height % _RAFT_MULTIPLE)
        padded = [F.pad(2 * image - 1, sides, "replicate") for image in images]
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            flow: Tensor = network(*padded)[-1]
        return flow[..., :height, :width]

    return run


@dataclass(frozen=True)
class Case:
    """Pairs of one size, `batch` of them at a time."""

    width: int
    height: int
    batch: int = 1


@dataclass(frozen=True)
class Result:
    """One way to compute a case, compared with the plain path in float32."""

    case: Case
    backend: str  # or the name of another method
    precision: str
    seconds: float  # for the whole batch
    startup_seconds: float
    """From a loaded network to the first result: folding, compiling, recording, first call."""
    peak_bytes: int | None
    ratio: float | None
    """How many times faster than the plain path; None where that was not measured."""
    mean_difference: float | None  # distance from the flow of the plain path, in pixels
    max_difference: float | None
    floor_share: float | None
    """The least possible time divided by the time: 1 is as fast as the machine could be."""


def measure(
    model: FlowNetwork,
    device: torch.device,
    cases: Sequence[Case],
    ways: Sequence[tuple[str, str]],
    repeats: int,
    options: Mapping[str, Any] | None = None,
    peers: Sequence[Method] = (),
    left_out: Callable[[str], object] = lambda reason: None,
) -> Iterator[Result]:
    """Measure every way (backend, precision) to compute every case, one after the other.

    A backend is one of an estimator, or "compiled". The way ("plain", "fp32") should come first:
    the others are compared with it. A way that lacks the memory to compute a case in one piece is
    left out. Of the `peers`, the time alone is compared; one that fails is reported to `left_out`.
    `options` are those of `FlowEstimator`.
    """
    quality = find_quality((options or {}).get("quality", NORMAL))
    rates = cache(lambda precision: machine_rates(device, DTYPES[precision]))
    prepare = partial(_prepare, model, options or {})
    ours = [Method(*way, device, partial(prepare, *way)) for way in ways]
    for case in cases:
        images = [image.to(device) for image in moving_pattern(case)]
        work = count_work(model.config, case.batch, (case.height, case.width), quality)
        plain = None
        for method in (*ours, *peers):
            name, precision, *_ = method
            try:
                with explained() if name == COMPILED else nullcontext():
                    run = _time(method, images, repeats)
            except RuntimeError as error:  # RAFT in 3840x2160: too many numbers for its pooling
                if method in ours:
                    raise
                reason = str(error).partition("\n")[0]
                left_out(f"{name} {precision} at {case.width}x{case.height}: {reason}")
                continue
            if run is None:
                continue
            if (name, precision) == ("plain", "fp32"):
                plain = run
            ratio = None if plain is None else plain.seconds / run.seconds
            mean = largest = share = None
            if method in ours:
                if precision != "int8":  # whose peak is not measured
                    least = work.least_seconds(rates(precision), DTYPES[precision])
                    share = least / run.seconds
                if plain is not None:
                    distance = (run.flow - plain.flow).norm(dim=1)
                    mean, largest = distance.mean().item(), distance.max().item()
            yield Result(case, name, precision, *run[:3], ratio, mean, largest, share)


def _prepare(
    model: FlowNetwork, options: Mapping[str, Any], backend: str, precision: str, *images: Tensor
) -> Call | None:
    device = images[0].device
    if backend == COMPILED:
        model, backend = compile_network(model, device), "plain"
    estimator = FlowEstimator(model, str(device), precision, backend, **options)
    return (lambda: estimator.estimate(*images)[0]) if estimator.fits(images[0]) else None


class _Run(NamedTuple):
    seconds: float
    startup_seconds: float
    peak_bytes: int | None
    flow: Any


def _time(method: Method, images: list[Tensor], repeats: int) -> _Run | None:
    """Time a method from its preparation on; None if it lacks the memory for the images."""
    with PeakMemory(method.device) as memory:
        start = perf_counter()
        call = method.prepare(*(image.to(method.device) for image in images))
        if call is None:
            return None
        flow = call()
        if isinstance(flow, Tensor):
            flow = flow.cpu()  # waits for the device
        startup = perf_counter() - start
        seconds = median_seconds(call, method.device, repeats)
    return _Run(seconds, startup, memory.bytes, flow)


def moving_pattern(case: Case) -> tuple[Tensor, Tensor]:
    """Two (B, 3, H, W) images in [0, 1]: smooth random patterns, and the same moved by 6 px.

    Fine and coarse ones, as in photographs: to a coarse level, fine ones look alike everywhere.
    """
    generator = torch.Generator().manual_seed(0)
    shift = 6
    size = (case.height + shift, case.width + shift)
    patterns = []
    for detail in (8, 32, 128):  # px
        coarse_size = [side // detail + 4 for side in size]
        coarse = torch.rand(case.batch, 3, *coarse_size, generator=generator)
        patterns.append(F.interpolate(coarse, size, mode="bicubic"))
    fine = torch.stack(patterns).mean(0).clamp(0, 1)
    return fine[..., :-shift, :-shift], fine[..., shift:, shift:]


class First(NamedTuple):
    """The medians of several runs."""

    cache: str  # of kernels: "empty", "full", or "-" where there is none
    seconds: Mapping[str, float]  # by column


def measure_first(
    case: Case, device: torch.device, command: Sequence[str], repeats: int
) -> Iterator[First]:
    """Run `command`, which prints JSON, on a pair; on CUDA with empty and with full caches."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        frames = [folder / f"frame{number}.png" for number in (1, 2)]
        pictures = zip(frames, moving_pattern(case), strict=True)
        write_files({path: encode_image(path, _to_uint8(image)[0]) for path, image in pictures})
        words = [*command, *map(str, frames), "-o", str(folder / "flow.flo")]
        caches = [{key: str(folder / f"{key}-{n}") for key in _CACHES} for n in range(repeats)]
        # what the first runs compile, the others find
        for state in ("empty", "full") if device.type == "cuda" else ("-",):
            runs = [run_fresh(words, {} if state == "-" else cache) for cache in caches]
            medians = {column: median(run[column] for run in runs) for column in FIRST_COLUMNS}
            yield First(state, medians)


def run_fresh(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Run a command once; return its seconds, by column."""
    start, before = perf_counter(), os.times()
    ended = subprocess.run(command, capture_output=True, env=os.environ | environment, check=False)
    total, after = perf_counter() - start, os.times()
    if ended.returncode:
        raise InputError(ended.stderr.decode(errors="replace").strip().removeprefix("error: "))
    parts: dict[str, float] = json.loads(ended.stdout)["parts"]
    busy = after.children_user + after.children_system
    busy -= before.children_user + before.children_system
    sums = {"other": total - sum(parts.values()), "total": total}
    return {**parts, **sums, "beyond_torch": total - parts["torch"], "cpu": busy}


def as_row(result: Result) -> tuple[str, ...]:
    """The cells of a table under `HEADINGS`."""
    milliseconds = 1000 * result.seconds
    return (
        f"{result.case.width}x{result.case.height}",
        str(result.case.batch),
        f"{result.backend} {result.precision}",
        f"{result.startup_seconds:.1f}",
        f"{milliseconds:.0f}" if milliseconds >= 1000 else f"{milliseconds:.4g}",
        "-" if result.peak_bytes is None else f"{result.peak_bytes / 2**30:.2f}",
        "-" if result.ratio is None else f"{result.ratio:.2f}",
        "-" if result.mean_difference is None else f"{result.mean_difference:.2g}",
        "-" if result.max_difference is None else f"{result.max_difference:.2g}",
        "-" if result.floor_share is None else f"{100 * result.floor_share:.0f} %",
    )


def as_record(result: Result) -> dict[str, Any]:
    """One result as a flat record, with derived numbers."""
    values = asdict(result)
    case = values.pop("case")
    return {**case, **values, "pairs_per_second": result.case.batch / result.seconds}


def encode_plot(results: Sequence[Result]) -> bytes:
    """Draw time and memory against pixels, as a PNG, on linear axes."""
    figure = draw_figure(10, 4)
    time_axes, memory_axes = figure.subplots(1, 2)
    groups = defaultdict(list)
    for result in results:
        megapixels = result.case.width * result.case.height * result.case.batch / 1e6
        groups[f"{result.backend} {result.precision}"].append((megapixels, result))
    for label, points in sorted(groups.items()):
        points.sort(key=lambda point: point[0])
        times = [(x, 1000 * result.seconds) for x, result in points]
        memory = [(x, result.peak_bytes / 2**30) for x, result in points if result.peak_bytes]
        for axes, values in ((time_axes, times), (memory_axes, memory)):
            axes.plot(*zip(*values, strict=True) if values else ([], []), "o-", label=label)
    for axes, quantity in ((time_axes, "ms"), (memory_axes, "GiB at the peak")):
        axes.set(xlabel="megapixels", ylabel=quantity)
        axes.set_xlim(0)
        axes.set_ylim(0)
        axes.grid(alpha=0.3)
        axes.legend()
    return encode_figure(figure, dpi=120)
