"""Cues tell how far a flow errs and whether its end is visible; the models are fitted to truth."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from dicl_flow.errors import InputError
from dicl_flow.tracking.reliability import (
    CUES,
    LARGEST,
    LinearModel,
    TrackCalibration,
    fit,
    packaged_calibration,
    read_flow_at,
)
from dicl_flow.weights import PACKAGED_SHA256

HIDDEN_LIKE = {
    "confidence": -4.0,
    "way_back": -4.0,
    "disagreement": 3.0,
    "miss": 3.0,
    "outside": 0.0,
}


def cues_of(**values):
    return torch.tensor([[values.get(cue, 0.0)] for cue in CUES])


def test_the_packaged_calibration_doubts_flows_that_do_not_lead_back():
    calibration = packaged_calibration()
    good = cues_of(confidence=4.0, way_back=4.0, disagreement=-2.0, length=1.0)
    bad = cues_of(length=1.0, **HIDDEN_LIKE)
    assert calibration.expected_error(good) < 1 < calibration.expected_error(bad)
    assert calibration.visibility(good) > 0.9
    assert calibration.visibility(bad) < 0.5


def test_a_fitted_packaged_calibration_belongs_to_the_packaged_weights():
    calibration = packaged_calibration()
    assert not calibration.fitted or calibration.weights in PACKAGED_SHA256.values()


def test_a_calibration_survives_its_file():
    calibration = replace(packaged_calibration(), fitted=True, clips=3, weights="ab", date="today")
    assert TrackCalibration.from_json(calibration.to_json()) == calibration


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vissible": 1}, "did you mean 'visible'"),
        ({"clips": "3"}, "clips must be of type int"),
        ({"error": {"bias": 1.0}}, "error lacks the key 'confidence'"),
        ({"error": dict.fromkeys(("bias", *CUES), float("nan"))}, "NaN"),
    ],
)
def test_a_damaged_calibration_is_refused(change, message):
    values = asdict(packaged_calibration()) | change
    with pytest.raises(InputError, match=message):
        TrackCalibration.from_json(json.dumps(values))


def drawn(count=20_000):
    """Cues, and errors and visibility that follow known models."""
    torch.manual_seed(0)
    cues = torch.randn(len(CUES), count, dtype=torch.float64)
    cues[CUES.index("outside")] = 0  # says nothing here
    error = LinearModel(0.2, -0.3, -0.1, 0.5, 0.2, 0.1, 0.2, 0.15, 0.0)
    visible = LinearModel(1.0, 0.5, 0.4, -1.0, -0.3, 0.1, -0.2, -0.3, 0.0)
    lengths = torch.distributions.Exponential(1.0).sample((count,)).double() * error(cues).exp()
    seen = torch.rand(count) < visible(cues).sigmoid()
    return cues, lengths, seen, error, visible


def test_a_fit_finds_the_models_that_made_the_samples():
    cues, lengths, seen, *models = drawn()
    lengths[~seen] = 1e4  # errors of hidden points do not count
    found = fit(cues, lengths, seen)
    assert found.fitted
    for model, made in zip((found.error, found.visible), models, strict=True):
        for one, other in zip(
            (model.bias, *model.weights), (made.bias, *made.weights), strict=True
        ):
            assert one == pytest.approx(other, abs=0.08)


def test_expected_errors_are_mean_errors():
    cues, lengths, seen, *_ = drawn()
    found = fit(cues, lengths, seen)
    expected = found.expected_error(cues)
    for some in expected.argsort().chunk(5):
        some = some[seen[some]]
        assert lengths[some].mean() == pytest.approx(float(expected[some].mean()), rel=0.1)


def test_weights_count_samples():
    cues, lengths, seen, *_ = drawn(4000)
    again = torch.where(seen, 1, 3)
    repeated = torch.repeat_interleave(torch.arange(4000), again)
    one = fit(cues, lengths, seen, again.double())
    other = fit(cues[:, repeated], lengths[repeated], seen[repeated])
    assert one.visible.bias == pytest.approx(other.visible.bias, abs=1e-3)
    assert one.visible.weights == pytest.approx(other.visible.weights, abs=1e-3)


def test_gross_errors_count_as_large_ones():
    cues, lengths, seen, *_ = drawn(2000)
    lengths[:20] = 1e6
    capped = lengths.clamp(max=LARGEST)
    assert fit(cues, lengths, seen) == fit(cues, capped, seen)


def test_a_fit_needs_visible_and_hidden_points():
    cues, lengths, seen, *_ = drawn(100)
    with pytest.raises(InputError, match="some hidden"):
        fit(cues, lengths, torch.ones_like(seen))


def test_cues_are_what_their_names_say():
    packed = torch.zeros(1, 6, 20, 30)
    packed[:, 0], packed[:, 2], packed[:, 5] = 3.0, 0.9, 0.25
    packed[:, 3] = -1.0  # misses by 2 px
    packed[:, 1, :, 15:] = 4.0  # an edge
    found = read_flow_at(packed, torch.tensor([[5.0, 5.0], [15.0, 5.0], [28.0, 5.0]]), 8)
    cue = dict(zip(CUES, found.cues, strict=True))
    assert cue["confidence"].sigmoid().tolist() == pytest.approx([0.9] * 3)
    assert cue["way_back"].sigmoid().tolist() == pytest.approx([0.25] * 3)
    assert (cue["disagreement"].exp() - 0.1).tolist()[0] == pytest.approx(2.0, abs=1e-4)
    assert cue["miss"].expm1().tolist()[0] == pytest.approx(2.0, abs=1e-4)
    assert cue["length"].expm1().tolist() == pytest.approx([3.0, 5.0, 5.0], abs=1e-4)
    assert cue["edge"].expm1().tolist() == pytest.approx([0.0, 4.0, 0.0], abs=1e-4)
    assert cue["interval"].tolist() == [3.0] * 3
    assert cue["outside"].tolist() == [0, 0, 1]
    assert found.inside.tolist() == [True, True, False]
