import os
from pathlib import Path

import numpy as np
import pytest
import torch
from golden import formula

from dicl_flow.cli import main
from dicl_flow.config import LevelConfig, ModelConfig
from dicl_flow.models import build
from dicl_flow.weights import Weights, encode_weights

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores

DATASETS = Path(__file__).parents[2] / "shared" / "datasets"

SMALL = ModelConfig(levels=(LevelConfig(8, 2, ((8, 1),)), LevelConfig(4, 1, ((8, 1), (8, 2)))))
"""A network of two levels that a test can afford."""


@pytest.fixture(scope="session")
def datasets() -> Path:
    """A few real pairs, where they are there."""
    if not DATASETS.is_dir():
        pytest.skip("no folder ../shared/datasets")
    return DATASETS


@pytest.fixture(scope="session")
def golden_state() -> dict[str, torch.Tensor]:
    return formula.state_dict()


@pytest.fixture(scope="session")
def golden_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The 256x256 pair of the golden outputs, (1, 3, H, W) float64, normalised."""
    image1, image2 = (
        torch.from_numpy(image.transpose(2, 0, 1)[None] / 127.5 - 1)
        for image in formula.pair(256, 256)
    )
    return image1, image2


@pytest.fixture(scope="session")
def golden_outputs() -> dict[str, np.ndarray]:
    with np.load(Path(formula.__file__).with_name("outputs.npz")) as archive:
        return dict(archive)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, golden_state) -> Path:
    """A checkpoint as the authors' code writes it."""
    path = tmp_path_factory.mktemp("legacy") / "ckpt.pth.tar"
    torch.save({"epoch": 1, "arch": "dicl", "state_dict": golden_state}, path)
    return path


@pytest.fixture(scope="session")
def small_weights(tmp_path_factory) -> Path:
    """A weights file of the small network."""
    torch.manual_seed(0)
    model = build(SMALL)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    path.write_bytes(encode_weights(Weights(SMALL, model.state_dict(), {"recipe": "none"})))
    return path


@pytest.fixture
def frames(tmp_path) -> tuple[Path, Path]:
    """Two PNG files of one size."""
    import cv2

    paths = tmp_path / "frame1.png", tmp_path / "frame2.png"
    for path, image in zip(paths, formula.pair(37, 51), strict=True):
        cv2.imwrite(str(path), image)
    return paths


@pytest.fixture
def run(capsys):
    """Run the command; return its exit code, output and errors."""

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return call
