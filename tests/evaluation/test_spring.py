"""Spring: four true vectors for each pixel, scores by region, and the files of a submission."""

import json
import zipfile

import numpy as np
import pytest
from fake_trees import SIZE, make_spring, write_image

import dicl_flow
from dicl_flow.data import FlowSample, list_pairs, read_sample
from dicl_flow.errors import InputError
from dicl_flow.evaluation import missing_pairs, score_flow, submission_entries
from dicl_flow.files import decode_flow, encode_flow, write_flow

pytest.importorskip("h5py", reason="h5py is not installed")
BLACK = np.zeros((2, 3, 3), np.uint8)


@pytest.fixture
def spring(tmp_path):
    return make_spring(tmp_path / "spring")


def sample_of(fine, **masks):
    """A sample of 3x2 pixels, with 2x2 vectors each, (2, 3, 4, 2)."""
    fine = np.asarray(fine, np.float32)
    valid = np.isfinite(fine[..., 0]).all(2)
    return FlowSample(BLACK, BLACK, np.nan_to_num(fine[:, :, 0]), valid, fine=fine, **masks)


def test_the_nearest_of_four_vectors_counts():
    fine = np.zeros((2, 3, 4, 2))
    fine[0, 0] = [(8, 0), (0, 6), (3, 4), (0, 9)]  # the nearest to no motion is 5 px away
    fine[0, 1, 3] = np.nan  # one of four unknown: the pixel does not count
    values = score_flow(np.zeros((2, 3, 2), np.float32), sample_of(fine)).values
    assert values["epe"] == pytest.approx(5 / 5)
    assert values["over_1px"] == pytest.approx(100 / 5)


def test_lengths_are_the_mean_and_outliers_go_by_the_longest():
    """An error of 3.5 px is an outlier up to 70 px: the longest vector has 100, the mean is 26."""
    fine = np.zeros((2, 3, 4, 2))
    fine[...] = [(100, 0), (0, 0), (0, 0), (4, 0)]
    estimate = np.broadcast_to(np.float32([0, 3.5]), (2, 3, 2))
    values = score_flow(estimate, sample_of(fine)).values
    assert values["fl_all"] == 0
    assert "s40_plus" not in values
    assert values["s10_40"] == pytest.approx(3.5)
    assert values["over_1px_s10_40"] == 100
    fine[...] = [(60, 0), (0, 0), (0, 0), (44, 0)]  # the same mean
    assert score_flow(estimate, sample_of(fine)).values["fl_all"] == 100


def test_regions_and_their_opposites_are_scored_apart():
    fine = np.zeros((2, 3, 4, 2))
    fine[0] = 5
    upper = np.array([[True] * 3, [False] * 3])
    left = np.array([[True, False, False]] * 2)
    sample = sample_of(fine, regions={"sky": upper, "nonrigid": left}, occluded=~upper)
    values = score_flow(np.zeros((2, 3, 2), np.float32), sample).values
    found = {name[9:]: value for name, value in values.items() if name.startswith("over_1px_")}
    assert found == {
        **{"matched": 100, "unmatched": 0, "sky": 100, "not_sky": 0},
        **{"nonrigid": 50, "rigid": 50, "s0_10": 50},
    }
    assert values["matched"] == pytest.approx(np.hypot(5, 5))


def test_a_sample_has_one_vector_for_training_and_four_for_scores(spring):
    pair = next(p for p in list_pairs("spring", spring) if "BW_right" in p.name)
    assert pair.name == "0001/flow_BW_right/flow_BW_right_0002"
    fine = np.random.default_rng(0).normal(size=(2 * SIZE[0], 2 * SIZE[1], 2)).astype(np.float32)
    fine[1, 1] = np.nan
    write_flow(pair.truth, fine)
    sample = read_sample(pair)
    assert not sample.valid[0, 0]
    assert sample.valid.sum() == sample.valid.size - 1
    np.testing.assert_array_equal(sample.flow[1:], fine[2::2, ::2])
    np.testing.assert_array_equal(sample.fine[3, 5], fine[6:8, 10:12].reshape(4, 2))
    write_flow(pair.truth, fine[:-2])
    with pytest.raises(InputError, match=r"is 192x126, expected 192x128: twice its frame"):
        read_sample(pair)


def test_maps_of_either_size_are_read_and_may_be_missing(spring):
    pair = list_pairs("spring:left-forward", spring)[0]
    sample, expected = read_sample(pair), np.zeros(SIZE, bool)
    expected[: SIZE[0] // 4] = True
    assert {*sample.regions} == {"high_detail", "nonrigid", "sky"}
    for region in (*sample.regions.values(), sample.occluded):
        np.testing.assert_array_equal(region, expected)
    for file in (spring / "train/0001/maps").rglob("*.png"):
        file.unlink()
    bare = read_sample(list_pairs("spring:left-forward", spring)[0])
    assert (bare.regions, bare.occluded) == ({}, None)


def test_half_of_four_map_pixels_are_enough_and_blue_hides_nothing(spring):
    """As in the benchmark's own evaluation."""
    pair = list_pairs("spring:left-forward", spring)[0]
    sky = np.zeros((2 * SIZE[0], 2 * SIZE[1], 3), np.uint8)
    sky[0, 0] = 255  # one of the first pixel's four, two of the second's
    sky[0:2, 2] = 255
    write_image(dict(pair.regions)["sky"], sky)
    hidden = np.zeros((*SIZE, 3), np.uint8)
    hidden[0, :3] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    write_image(pair.occlusion, hidden)
    sample = read_sample(pair)
    assert np.argwhere(sample.regions["sky"]).tolist() == [[0, 1]]
    assert np.argwhere(sample.occluded).tolist() == [[0, 0], [0, 1]]


def test_evaluation_shows_the_regions(run, spring):
    given = ("--data", f"spring:left-forward={spring}", "--baseline", "dis")
    code, out, _ = run("eval", *given)
    assert code == 0
    assert "By region, as Spring's benchmark" in out
    metrics = json.loads(run("eval", *given, "--json")[1])["results"][0]["metrics"]
    assert 0 <= metrics["over_1px_low_detail"] <= 100
    assert {"over_1px_sky", "over_1px_rigid", "over_1px_unmatched", "wauc"} < {*metrics}


@pytest.mark.heavy
def test_a_submission_has_the_layout_of_spring(run, spring, tiny_weights, tmp_path):
    output = tmp_path / "spring.zip"
    code, _, err = run("submit", "spring", spring, "-o", output, "-w", tiny_weights)
    assert (code, err.split(" test pairs")[0]) == (0, "warning: 3,956 of the 3,960")
    entries = submission_entries("spring", spring)
    assert missing_pairs("spring", entries) == 3956
    with zipfile.ZipFile(output) as archive:
        assert sorted(archive.namelist()) == [
            f"0003/flow_{direction}_{eye}/flow_{direction}_{eye}_{number}.flo5"
            for direction, number in (("BW", "0002"), ("FW", "0001"))
            for eye in ("left", "right")
        ]
        name = "0003/flow_BW_right/flow_BW_right_0002.flo5"
        flow = decode_flow(name, archive.read(name))
    frames = spring / "test/0003/frame_right"
    pair = [frames / f"frame_right_{number}.png" for number in ("0002", "0001")]
    np.testing.assert_array_equal(flow, dicl_flow.load(tiny_weights)(*pair).flow)
    assert flow.shape == (*SIZE, 2)  # of the frames, not of the truth


def test_without_h5py_one_sentence_says_what_to_install(run, spring, tmp_path, monkeypatch):
    pair = list_pairs("spring:left-forward", spring)[0]
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    wanted = "need h5py: pip install 'dicl-flow[hdf5]'"
    for given in (
        ("flow", pair.image1, pair.image2, "-o", tmp_path / "flow.flo5"),
        ("show", pair.truth, "-o", tmp_path / "flow.png"),
        ("eval", "--data", f"spring={spring}", "--baseline", "dis"),
        ("submit", "spring", spring, "-o", tmp_path / "spring.zip"),
    ):
        code, out, err = run(*given)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert wanted in err
    with pytest.raises(InputError, match="need h5py"):
        encode_flow("x.flo5", np.zeros((1, 1, 2), np.float32))
