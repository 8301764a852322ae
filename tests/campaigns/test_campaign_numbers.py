"""A slice of the campaigns `numbers` and `soak`: small frames, and growth that is found."""

import json

import numpy as np
import pytest
from conftest import SMALL
from fake_trees import write_image, write_truth

from campaigns import soak
from campaigns.commands import Pair
from campaigns.inputs import moving_frames, write_clip
from campaigns.numbers import contents
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.files import read_flow
from dicl_flow.models import build

pytestmark = pytest.mark.heavy

SIZE = (1, 3)


@pytest.fixture
def pair(tmp_path, small_weights):
    found = Pair(tmp_path / "pair", small_weights, SIZE)
    found.out.mkdir()
    write_truth(found.truth, np.zeros((*SIZE, 2), np.float32))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["flow", "video", "interpolate", "warp", "show", "bulk"])
def test_frames_of_three_pixels(run, pair, name):
    for path, image in zip((pair.first, pair.second), contents(*SIZE)["noise"], strict=True):
        write_image(path, image)
    code, out, err = run(*pair.words(name))
    assert (code, err) == (0, "")
    assert json.loads(out)["written"]
    if name == "flow":
        assert np.isfinite(read_flow(pair.out / "flow.flo")).all()


def samples(**growth):
    """Samples of an hour, of which some values grow to a given one."""
    flat = {"memory_mb": 100.0, "malloc_mb": 50.0, "files": 9, "threads": 1, "cuda_bytes": 512}
    return [
        {"hours": part / 20, **{n: v + growth.get(n, 0) * part / 20 for n, v in flat.items()}}
        for part in range(21)
    ]


@pytest.mark.parametrize(
    ("growth", "failures"),
    [
        *(({}, 0), ({"memory_mb": 4}, 0), ({"memory_mb": 6}, 1)),
        *(({"files": 20}, 1), ({"threads": 20}, 1), ({"cuda_bytes": 20}, 1)),
    ],
)
def test_growth_is_found(growth, failures):
    before, *later = samples(**growth)
    assert len(soak.judge(before, later).failures) == failures


def test_a_round_of_the_soak_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "FLOWS", 3)
    clip = write_clip(tmp_path / "clip.avi", moving_frames(4, 16, 24))
    soak._round(FlowEstimator(build(SMALL), "cpu", "fp32"), clip, tmp_path)
    assert list(tmp_path.iterdir()) == [clip]
