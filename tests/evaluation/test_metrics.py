"""Metrics equal their definitions, computed the plain way."""

import numpy as np
import pytest

from dicl_flow.data import FlowSample, list_pairs, read_sample
from dicl_flow.errors import InputError
from dicl_flow.evaluation import dis, endpoint_error, pool, score_flow
from dicl_flow.evaluation.metrics import METRICS

REAL_DATA = {  # folder, and the EPE that another program measured there for DIS
    "middlebury": ("Middlebury", 0.27),
    "sintel-clean": ("Sintel", 0.83),
    "sintel-final": ("Sintel", 0.33),
    "kitti15": ("KITTI2015", 2.99),
    "kitti12:noc": ("KITTI2012", 0.24),
    "chairs:all": ("FlyingChairs_release", 4.91),
    "stereo": ("MiddleburyStereo2014", 2.60),
}


def reference(estimates, samples):
    """Every metric from its definition, on the plain list of all valid pixels."""
    errors, speeds, means, outlier_shares, matched, unmatched = [], [], [], [], [], []
    for estimate, sample in zip(estimates, samples, strict=True):
        u, v = sample.flow[sample.valid].astype(float).T
        estimated_u, estimated_v = estimate[sample.valid].astype(float).T
        error = np.sqrt((estimated_u - u) ** 2 + (estimated_v - v) ** 2)
        errors += list(error)
        speed = np.sqrt(u**2 + v**2)
        speeds += list(speed)
        means.append(sum(error) / len(error))
        outliers = (error > 3) & (error / np.maximum(speed, 1e-9) > 0.05)
        outlier_shares.append(100 * sum(outliers) / len(outliers))
        if sample.occluded is not None:  # a data set may know it of some pairs only
            matched += list(error[~sample.occluded[sample.valid]])
            unmatched += list(error[sample.occluded[sample.valid]])
    error, speed = np.array(errors), np.array(speeds)
    weights = [1 - (i - 1) / 100 for i in range(1, 101)]
    inliers = [np.mean(error <= i / 20) for i in range(1, 101)]
    averaged = {
        "epe": error,
        "epe_images": means,
        "over_1px": 100 * (error > 1),
        "over_3px": 100 * (error > 3),
        "over_5px": 100 * (error > 5),
        "fl_images": outlier_shares,
        "fl_all": 100 * ((error > 3) & (error / np.maximum(speed, 1e-9) > 0.05)),
        "wauc": [100 * np.dot(weights, inliers) / sum(weights)],
        "s0_10": error[speed < 10],
        "s10_40": error[(speed >= 10) & (speed < 40)],
        "s40_plus": error[speed >= 40],
        "matched": matched,
        "unmatched": unmatched,
    }
    return {name: np.mean(values) for name, values in averaged.items() if len(values)}


def random_sample(generator, size, occlusion=True):
    flow = (generator.standard_normal((*size, 2)) * 25).astype(np.float32)
    valid = generator.random(size) < 0.7
    occluded = generator.random(size) < 0.2 if occlusion else None
    image = np.zeros((*size, 3), np.uint8)
    return FlowSample(image, image, np.where(valid[..., None], flow, 0), valid, occluded)


def one_pixel(error, speed=0.0):
    """The score of one pixel that moves right by `speed` and is missed by `error`."""
    flow = np.array([[[speed, 0]]], np.float32)
    image = np.zeros((1, 1, 3), np.uint8)
    sample = FlowSample(image, image, flow, np.ones((1, 1), bool))
    return score_flow(flow + np.float32([0, error]), sample).values


@pytest.mark.parametrize("occlusion", [True, False])
def test_metrics_equal_their_definitions_on_random_flow(occlusion):
    generator = np.random.default_rng(0)
    sizes = [(20, 30), (7, 9), (40, 11)]  # pairs of unequal weight
    samples = [random_sample(generator, size, occlusion) for size in sizes]
    noise = [generator.exponential(2, sample.flow.shape) for sample in samples]
    estimates = [sample.flow + extra for sample, extra in zip(samples, noise, strict=True)]
    pooled = pool(map(score_flow, estimates, samples)).values
    expected = reference(estimates, samples)
    assert pooled == pytest.approx(expected, rel=1e-12)
    assert pooled["epe"] != pytest.approx(pooled["epe_images"], rel=1e-6)
    assert set(pooled) <= set(METRICS)


@pytest.mark.parametrize("name", REAL_DATA)
def test_metrics_equal_their_definitions_on_real_pairs(datasets, name):
    folder, measured = REAL_DATA[name]
    method = dis()
    samples = [read_sample(pair) for pair in list_pairs(name, datasets / folder)]
    estimates = [method(sample.image1, sample.image2) for sample in samples]
    pooled = pool(map(score_flow, estimates, samples)).values
    assert pooled == pytest.approx(reference(estimates, samples), rel=1e-9)
    assert pooled["epe_images"] == pytest.approx(measured, rel=0.05)


def test_fl_all_needs_both_conditions():
    assert one_pixel(error=4, speed=10)["fl_all"] == 100
    assert one_pixel(error=4, speed=100)["fl_all"] == 0  # above 3 px, below 5 %
    assert one_pixel(error=2, speed=10)["fl_all"] == 0  # above 5 %, below 3 px
    assert one_pixel(error=3, speed=0)["fl_all"] == 0  # more than 3 px, not 3 px
    assert one_pixel(error=4, speed=80)["fl_all"] == 0  # 5 % exactly


def test_pixel_shares_count_errors_above_the_threshold():
    for threshold in (1, 3, 5):
        assert one_pixel(threshold)[f"over_{threshold}px"] == 0
        assert one_pixel(threshold + 0.001)[f"over_{threshold}px"] == 100


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (0, 100),
        (5, 100 * 0.01 / 50.5),  # an inlier of the last threshold only, the lightest
        (5.001, 0),
        (0.0501, 100 * (1 - 1 / 50.5)),  # misses the first threshold, the heaviest
    ],
)
def test_wauc(error, expected):
    assert one_pixel(error)["wauc"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("speed", "name"),
    [(0, "s0_10"), (9.99, "s0_10"), (10, "s10_40"), (39.9, "s10_40"), (40, "s40_plus")],
)
def test_every_pixel_has_one_speed(speed, name):
    values = one_pixel(0.5, speed)
    assert [key for key in values if key.startswith("s")] == [name]
    assert values[name] == 0.5


def test_a_pair_without_valid_pixels_counts_for_nothing():
    generator = np.random.default_rng(1)
    sample = random_sample(generator, (5, 5))
    empty = FlowSample(sample.image1, sample.image2, sample.flow * 0, sample.valid & False)
    score = score_flow(sample.flow + 1, sample)
    assert score_flow(sample.flow, empty).values == {}
    assert pool([score, score_flow(sample.flow, empty)]).values == score.values


def test_the_estimate_is_a_number_everywhere_and_of_the_size_of_the_truth():
    truth = np.zeros((4, 6, 2), np.float32)
    with pytest.raises(InputError, match="unknown at some pixels"):
        endpoint_error(np.full_like(truth, np.nan), truth)
    with pytest.raises(InputError, match=r"shape \(6, 4, 2\), expected \(4, 6, 2\)"):
        endpoint_error(truth.transpose(1, 0, 2), truth)
