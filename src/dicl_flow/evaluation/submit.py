"""Archives of estimates for the servers of the benchmarks."""

import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from ..data import FlowPair, kitti_test_pairs, sintel_test_pairs
from ..errors import unknown_name
from ..files import encode_flow, replacing
from .methods import Prediction

_KITTI_RANGE = (-512.0, 511.984375)  # what 16 bits at 1/64 px hold


def submission_entries(benchmark: str, root: Path) -> dict[str, FlowPair]:
    """Return the test pairs of a benchmark, by the names of their files in the archive.

    sintel: clean/SCENE/frame_NNNN.flo and final/SCENE/frame_NNNN.flo. Before the upload, run
    the bundler that comes with the data set on the two unpacked folders.
    kitti15: flow/NNNNNN_10.png. kitti12: NNNNNN_10.png.
    """
    if benchmark not in BENCHMARKS:
        raise unknown_name("benchmark", benchmark, BENCHMARKS)
    return BENCHMARKS[benchmark](root)


def write_submission(path: Path, names: Iterable[str], predictions: Iterable[Prediction]) -> None:
    """Write the archive `path`, whole or not at all; `predictions` are in the order of `names`."""
    with (
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, (_, flow, *_) in zip(names, predictions, strict=True):
            kept = np.clip(flow, *_KITTI_RANGE) if name.endswith(".png") else flow
            archive.writestr(name, encode_flow(name, kept))


def _sintel(root: Path) -> dict[str, FlowPair]:
    passes = {name: sintel_test_pairs(root, name) for name in ("clean", "final")}
    return {f"{name}/{pair.name}.flo": pair for name, pairs in passes.items() for pair in pairs}


def _kitti15(root: Path) -> dict[str, FlowPair]:
    return {f"flow/{pair.name}.png": pair for pair in kitti_test_pairs(root, 2015)}


def _kitti12(root: Path) -> dict[str, FlowPair]:
    return {f"{pair.name}.png": pair for pair in kitti_test_pairs(root, 2012)}


BENCHMARKS: Mapping[str, Callable[[Path], dict[str, FlowPair]]] = {
    "sintel": _sintel,
    "kitti15": _kitti15,
    "kitti12": _kitti12,
}
