"""Analyses of a network equal direct computations."""

import json
from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL
from golden import formula

from dicl_flow.config import ModelConfig
from dicl_flow.data import FlowPair
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator, load
from dicl_flow.evaluation import dis, score_pair
from dicl_flow.files import write_flow
from dicl_flow.lab import layers, volumes
from dicl_flow.lab.analyses import (
    Peaks,
    PixelMap,
    draw_pixel,
    projection_kernels,
    summarize_kernel,
    weight_by_distance,
)
from dicl_flow.lab.compare import find_flows, sheet_names
from dicl_flow.lab.volumes import (
    _cell,
    open_networks,
    peak_distance,
    read_volumes,
    soft_argmax,
    winner,
)
from dicl_flow.models import build
from dicl_flow.ops import displacement_probability
from dicl_flow.pictures.figures import encode_figure
from dicl_flow.weights import Weights, encode_weights

pytestmark = pytest.mark.heavy

SIZE = (40, 60)


def network(config=SMALL, seed=1):
    """A small network whose projection is no longer the identity."""
    torch.manual_seed(seed)
    model = build(config)
    for level in model.levels.values():
        if config.projection:
            level.projection.weight.data += 0.1 * torch.randn_like(level.projection.weight)
    return model.eval()


def estimator(config=SMALL):
    return FlowEstimator(network(config), "cpu", "fp32", "plain")


@pytest.fixture
def pair(tmp_path):
    """Two frames on disk with a truth: three pixels to the right, one up."""
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for path, image in zip(paths, formula.pair(*SIZE), strict=True):
        cv2.imwrite(str(path), image)
    write_flow(tmp_path / "one.flo", np.tile(np.float32([3, -1]), (*SIZE, 1)))
    return FlowPair("one", *paths, tmp_path / "one.flo")


@pytest.fixture
def arguments(pair):
    return ["--pair", pair.image1, pair.image2, "--truth", pair.truth, "--device", "cpu"]


@pytest.fixture
def weights(tmp_path):
    """Two weights files: with DAP, and without."""
    files = []
    for name, projection in (("with", True), ("without", False)):
        config = replace(SMALL, projection=projection)
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(encode_weights(Weights(config, network(config).state_dict(), {})))
        files.append(path)
    return files


# --- probabilities -----------------------------------------------------------------------------


def one_peak(u, v, first=0.6, second=0.3):
    """(5, 5, 1, 1): most at (u, v), less at the opposite displacement."""
    probability = torch.full((5, 5, 1, 1), (1 - first - second) / 23)
    probability[2 + u, 2 + v] = first
    probability[2 - u, 2 - v] = second
    return probability


def test_d_peak_is_the_lead_of_the_highest():
    torch.testing.assert_close(peak_distance(one_peak(1, 2)).item(), 0.3)
    torch.testing.assert_close(peak_distance(torch.full((7, 7, 2, 3), 1 / 49)), torch.zeros(2, 3))


def test_the_winner_takes_all_and_the_mean_does_not():
    assert winner(one_peak(1, -2)).flatten().tolist() == [1, -2]  # u is horizontal, x first
    soft = soft_argmax(one_peak(1, -2)).flatten()
    torch.testing.assert_close(soft, torch.tensor([0.3, -0.6]))


def test_a_histogram_knows_its_median():
    peaks = Peaks()
    peaks.histogram[[100, 570, 900]] = [10, 11, 10]
    assert peaks.median == pytest.approx(0.5705)


@pytest.mark.parametrize("padding", ["replicate", "resize"])
def test_volumes_are_what_the_network_computed(padding):
    """Soft-argmin of the projected volume plus the coarser flow is the level's matched flow."""
    config = replace(SMALL, padding=padding)
    reader = estimator(config)
    image1, image2 = formula.pair(*SIZE)
    levels, inputs = [], []
    reader.model.register_forward_hook(lambda module, images, output: levels.extend(output))
    reader.model.register_forward_hook(lambda module, images, output: inputs.extend(images))
    found = read_volumes(reader, image1, image2)
    assert list(found.levels) == [8, 4]
    assert found.network_size == tuple(inputs[0].shape[-2:])
    for level, volume in zip(levels, found.levels.values(), strict=True):
        matched = soft_argmax(volume.after) + volume.start
        torch.testing.assert_close(matched, level.matched[0])
        assert not torch.allclose(volume.before, volume.after)
    assert found.levels[8].start.abs().max() == 0
    expected = reader(image1, image2).flow
    np.testing.assert_allclose(found.to_frame(levels[-1].refined[0]), expected, atol=1e-5)
    seen = found.seen(levels[-1].matched[0])
    assert tuple(seen.shape) == ((2, 10, 15) if padding == "replicate" else (2, 12, 16))
    assert not reader.model.levels["8"].matcher._forward_hooks  # nothing stays behind


def test_before_is_what_the_projection_gets():
    reader, scores = estimator(), {}
    for stride, level in reader.model.levels.items():
        level.projection.register_forward_hook(
            lambda module, inputs, output, stride=int(stride): scores.update({stride: inputs[0]})
        )
    found = read_volumes(reader, *formula.pair(*SIZE))
    for stride, volume in found.levels.items():
        torch.testing.assert_close(volume.before, displacement_probability(scores[stride])[0])


def test_a_network_without_dap_has_one_volume():
    found = read_volumes(estimator(replace(SMALL, projection=False)), *formula.pair(*SIZE))
    for volume in found.levels.values():
        assert torch.equal(volume.before, volume.after)


@pytest.mark.parametrize("host", ["pwcnet", "vcn"])
def test_volumes_of_other_hosts_are_those_of_their_matcher(host):
    reader = estimator(replace(SMALL.with_host(host), matcher="dicl"))
    image1, image2 = formula.pair(*SIZE)
    scores, levels = {}, []
    for stride, level in reader.model.levels.items():
        level.matcher.register_forward_hook(
            lambda module, inputs, output, stride=int(stride): scores.update({stride: output})
        )
    reader.model.register_forward_hook(lambda module, images, output: levels.extend(output))
    found = read_volumes(reader, image1, image2)
    for level, (stride, volume) in zip(levels, found.levels.items(), strict=True):
        expected = displacement_probability(scores[stride][:, 0])[0]
        torch.testing.assert_close(volume.before, expected)
        assert torch.equal(volume.before, volume.after)
        assert torch.equal(volume.matched, level.matched[0])
        assert volume.start.shape == volume.matched.shape
    assert found.levels[8].start.abs().max() == 0
    upsampled = reader.model.upsample(levels[0].refined, tuple(found.levels[4].start.shape[-2:]))
    if host == "vcn":  # PWC-Net enlarges it with a learned layer
        torch.testing.assert_close(found.levels[4].start, upsampled[0])
    expected = reader(image1, image2).flow
    np.testing.assert_allclose(found.to_frame(levels[-1].refined[0]), expected, atol=1e-5)


def test_the_cell_of_a_pixel():
    places = np.array([-0.4, 0, 4, 5, 7, 8, 63])
    assert [*_cell(places, 64, 8, aligned=True)] == [0, 0, 0, 1, 1, 1, 7]
    assert [*_cell(places, 64, 8, aligned=False)] == [0, 0, 0, 0, 0, 1, 7]


def test_hosts_with_their_own_matcher_are_refused(monkeypatch):
    config = ModelConfig(host="pwcnet")
    other = SimpleNamespace(model=SimpleNamespace(config=config))
    monkeypatch.setattr(volumes, "load", lambda *_: other)
    with pytest.raises(InputError, match="host 'pwcnet' with its own matcher"):
        open_networks([None], "cpu")


# --- kernels -----------------------------------------------------------------------------------


def test_kernels_lie_where_the_projection_reads_them():
    reader = estimator()
    kernels = projection_kernels("small", reader)
    assert {stride: kernel.shape for stride, kernel in kernels.items()} == {
        8: (5, 5, 5, 5),
        4: (3, 3, 3, 3),
    }
    scores = torch.zeros(1, 3, 3, 1, 1)
    scores[0, 2, 0] = 1  # u = 1, v = -1
    projected = reader.model.levels["4"].projection(scores)[0, :, :, 0, 0]
    np.testing.assert_allclose(kernels[4][:, :, 2, 0], projected.detach().numpy(), rtol=1e-6)


def test_near_and_far_are_told_apart():
    place = np.arange(7)
    u, v, a, b = np.meshgrid(place, place, place, place, indexing="ij")
    distance = np.hypot(u - a, v - b)
    kernel = np.where(distance < 2, 1.0, -0.5)
    summary = summarize_kernel(kernel)
    assert summary["own_mean"] == summary["near_mean"] == 1
    assert summary["far_mean"] == -0.5
    assert summary["near_positive_share"] == summary["far_negative_share"] == 1
    curve = weight_by_distance(kernel)
    assert curve[0.0] == 1
    assert curve[float(np.hypot(6, 6))] == -0.5


# --- layers ------------------------------------------------------------------------------------

VOLUME = layers.VolumeShape(channels=4, side=5, height=6, width=8)


def test_table_1_of_the_paper():
    volume = layers.VolumeShape(64, 7, 109, 256)
    dense, separable, batched, single = layers.layer_costs(volume)
    ratios = [cost.paper_parameters / single.paper_parameters for cost in (dense, separable)]
    assert ratios == [9 * 64, 2 * 64]
    assert dense.paper_memory == separable.paper_memory == 49 * single.paper_memory
    assert single.paper_parameters == 9 * 64
    assert [c.parameters // single.parameters for c in (dense, separable, batched)] == [9, 2, 1]
    assert dense.multiply_adds == 9 * single.multiply_adds


def whole_volume(features):
    return layers._build(VOLUME, features)


def test_real_layers_compute_what_they_claim():
    torch.manual_seed(0)
    features = torch.rand(2, 2, 6, 8, dtype=torch.float64)
    whole = whole_volume(features)
    moved = whole[2 + 1, 2 - 2, 2:]  # u = 1, v = -2
    torch.testing.assert_close(moved[:, 2:, :-1], features[1, :, :-2, 1:])
    assert moved[:, :2].abs().max() == 0
    dense = torch.rand(3, 4, 4, 3, 3, 3, dtype=torch.float64)
    found = layers._convolve_4d(VOLUME, features, dense)  # (U, K, V, H, W)
    padded = F.pad(whole.permute(2, 0, 1, 3, 4), (1, 1) * 4)
    windows = padded
    for axis in range(1, 5):
        windows = windows.unfold(axis, 3, 1)
    expected = torch.einsum("cuvhwabde,aocbde->ouvhw", windows, dense)
    torch.testing.assert_close(found.transpose(0, 1), expected)
    across, along = torch.rand(2, 4, 4, 3, 3, dtype=torch.float64)
    found = layers._convolve_separably(VOLUME, features, across, along)
    over_uv = F.conv2d(whole.permute(3, 4, 2, 0, 1).flatten(0, 1), across, padding=1)
    slices = over_uv.unflatten(0, (6, 8)).permute(3, 4, 2, 0, 1).flatten(0, 1)
    torch.testing.assert_close(found, F.conv2d(slices, along, padding=1))
    single = layers._one_by_one(VOLUME, features, along)
    batched = F.conv2d(whole.flatten(0, 1), along, padding=1)
    torch.testing.assert_close(single, batched.mean(1))


def test_live_bytes_are_those_of_living_tensors():
    with layers.LiveBytes() as live:
        first = torch.zeros(100)
        second = first + 1
        view = second[:50]
        del first
        third = view * 2
    assert live.peak == 800
    assert third.sum() == 100


def test_one_displacement_at_a_time_needs_the_least_memory():
    costs = {c.name: c for c in layers.measure_layers(VOLUME, torch.device("cpu"))}
    volume_bytes = 4 * 4 * 25 * 48
    for name in (layers.DENSE, layers.SEPARABLE, layers.BATCHED):
        assert costs[name].measured_bytes >= 2 * volume_bytes  # input and output
    assert costs[layers.ONE_BY_ONE].measured_bytes < 0.5 * volume_bytes


# --- commands ----------------------------------------------------------------------------------


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_peaks_command(run, tmp_path, arguments, weights):
    out = tmp_path / "out"
    files = ["-w", weights[0], "-w", weights[1]]
    code, printed, _ = run("analyze", "peaks", *files, *arguments, "-o", out)
    assert code == 0
    assert "median d peak" in printed
    document = read(out, "peaks")
    assert list(document["found"]) == [
        "with, before DAP",
        "with, after DAP",
        "without, without DAP",
    ]
    assert document["paper"] == {"without DAP": 0.57, "with DAP": 0.63}
    with np.load(out / "peaks.npz") as arrays:
        for name, found in document["found"].items():
            assert arrays[f"histogram: {name}"].sum() == found["pixels"] == 10 * 15
            assert found["epe_soft_argmin"] > 0
            assert found["epe_winner_takes_all"] > 0
    assert cv2.imread(str(out / "peaks.png")) is not None


def test_kernels_command(run, tmp_path, weights):
    out = tmp_path / "out"
    assert run("analyze", "kernels", "-w", weights[0], "-o", out, "--device", "cpu")[0] == 0
    levels = read(out, "kernels")["levels"]
    assert set(levels) == {"stride 8", "stride 4"}
    assert "far_mean" in levels["stride 8"]  # radius 2 reaches far enough, radius 1 does not
    assert "far_mean" not in levels["stride 4"]
    assert cv2.imread(str(out / "kernels.png")) is not None
    code, _, err = run("analyze", "kernels", "-w", weights[1], "-o", tmp_path / "none")
    assert code == 2
    assert "without has no DAP layer" in err
    assert not (tmp_path / "none").exists()


def test_pixel_command(run, tmp_path, arguments, weights):
    out = tmp_path / "out"
    words = ("analyze", "pixel", 20, 30, "-w", weights[0], *arguments, "-o", out)
    code, printed, _ = run(*words, "--json")
    assert code == 0
    document = read(out, "pixel")
    written = [str(out / f"pixel.{kind}") for kind in ("json", "npz", "png")]
    assert json.loads(printed) == {**document, "written": written}
    levels = document["found"]["with, after DAP"]
    # the coarsest level starts from no motion: what is right there is the truth, in its pixels
    assert levels["stride 8"]["true_displacement"] == pytest.approx([3 / 8, -1 / 8])
    assert cv2.imread(str(out / "pixel.png")) is not None
    with np.load(out / "pixel.npz") as arrays:
        assert arrays["with, after DAP, stride 8"].sum() == pytest.approx(1)
        image1, image2 = (cv2.imread(str(path))[..., ::-1] for path in arguments[1:3])
        found = read_volumes(load(weights[0], "cpu", "fp32", "plain"), image1, image2)
        expected = found.levels[4].after[:, :, round(30 * 11 / 47), round(20 * 15 / 63)]
        np.testing.assert_allclose(arrays["with, after DAP, stride 4"], expected, atol=1e-6)
    lines = run(*words)[1].splitlines()
    (line,) = (line for line in lines if line.startswith("with, after DAP, stride 8"))
    assert "most probable (" in line
    assert line.endswith("; right (0.38, -0.12)")
    code, _, err = run("analyze", "pixel", 60, 3, "-w", weights[0], *arguments, "-o", out)
    assert code == 2
    assert "outside the 60x40 frame" in err


def test_precision_is_a_choice(run, tmp_path, arguments, weights):
    words, found = ("analyze", "pixel", 20, 30, "-w", weights[0], *arguments), []
    for precision in ("auto", "fp16"):
        out = tmp_path / precision
        assert run(*words, "--precision", precision, "-o", out)[0] == 0
        with np.load(out / "pixel.npz") as arrays:
            found.append(arrays["with, after DAP, stride 4"])
    assert 0 < np.abs(found[0] - found[1]).max() < 0.02


def test_layers_command(run, tmp_path):
    out = tmp_path / "out"
    size = ["--channels", 4, "--size", "8x6", "--radius", 2, "--device", "cpu"]
    found = json.loads(run("analyze", "layers", *size, "-o", out, "--json")[1])
    assert found["written"] == [str(out / f"layers.{kind}") for kind in ("json", "png", "md")]
    code, printed, _ = run("analyze", "layers", *size, "-o", out)
    assert code == 0
    assert "9 : 2 : 1" in " ".join(printed.split())
    assert len(read(out, "layers")["layers"]) == 4
    assert "| 36 |" in (out / "layers.md").read_text()  # 9 K
    assert run("analyze", "layers", "--channels", 3, "-o", out)[0] == 2


def test_compare_command(run, tmp_path, pair, arguments, weights):
    out = tmp_path / "out"
    code, printed, _ = run("analyze", "compare", weights[0], "dis", *arguments, "-o", out)
    assert code == 0
    assert "dis" in printed
    document = read(out, "compare")
    flow = dis()(*(cv2.imread(str(path))[..., ::-1] for path in (pair.image1, pair.image2)))
    assert document["totals"]["dis"]["epe"] == pytest.approx(score_pair(pair, flow).values["epe"])
    assert set(document["pairs"]) == {"with", "dis"}
    assert cv2.imread(str(out / "one.png")) is not None
    bare = [*arguments[:3], "--device", "cpu"]
    assert run("analyze", "compare", "dis", *bare, "-o", tmp_path / "bare")[0] == 0
    assert "warping_error" in read(tmp_path / "bare", "compare")["totals"]["dis"]


def test_compare_writes_a_sheet_for_each_pair_whatever_their_names(run, tmp_path):
    rows = ["image1,image2"]
    for name, grey in {"a/b": 50, "a-b": 100}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.full((16, 24, 3), grey, np.uint8))
        rows.append(f"{name}.png,a/b.png")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    data, out = f"pairs={tmp_path}", tmp_path / "out"
    assert run("analyze", "compare", "dis", "--data", data, "-o", out, "--device", "cpu")[0] == 0
    assert len({sheet.read_bytes() for sheet in out.glob("*.png")}) == 2


def test_names_of_sheets_differ_by_more_than_capitals(tmp_path):
    pairs = [FlowPair(name, tmp_path, tmp_path) for name in ("a/b", "a-b", "A:b", "a-b-2", "c")]
    assert [*sheet_names(pairs).values()] == [
        *("a-b.png", "a-b-2.png", "A-b-3.png", "a-b-2-2.png", "c.png")
    ]


def test_compare_takes_flow_files_of_other_methods(run, tmp_path, pair, arguments):
    (tmp_path / "other").mkdir()
    write_flow(tmp_path / "other" / "one.png", np.tile(np.float32([3, -2]), (*SIZE, 1)))
    flows = [f"file={pair.truth}", f"folder={tmp_path / 'other'}"]
    out = tmp_path / "out"
    assert run("analyze", "compare", *flows, *arguments, "-o", out)[0] == 0
    totals = read(out, "compare")["totals"]
    assert {name: total["epe"] for name, total in totals.items()} == {"file": 0, "folder": 1}

    small = tmp_path / "small.flo"
    write_flow(small, np.zeros((3, 4, 2), np.float32))
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = {
        f"x={empty}": "no flow of one in",
        f"x={small}": "small.flo: the estimate has the shape",
    }
    for flow, message in wrong.items():
        code, _, err = run("analyze", "compare", flow, *arguments, "-o", tmp_path / "new")
        assert code == 2
        assert message in err


def test_a_folder_of_flows_is_laid_out_as_eval_keeps_it_or_as_benchmarks_do(tmp_path):
    pairs = [FlowPair(f"kitti15:noc/00000{n}_10", tmp_path, tmp_path) for n in range(2)]
    kept = tmp_path / "kitti15-noc" / "000000_10.flo"
    kept.parent.mkdir()
    kept.touch()
    published = tmp_path / "000001_10.png"
    published.touch()
    found = find_flows(f"other={tmp_path}", pairs)
    assert [*found.files.values()] == [kept, published]
    assert find_flows("rendered", pairs) is None
    with pytest.raises(InputError, match="one flow, but there are 2 pairs"):
        find_flows(f"other={kept}", pairs)
    with pytest.raises(FileNotFoundError, match="NAME=PATH, but there is no"):
        find_flows("other=nowhere", pairs)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--truth", "x.flo"], "--truth is the flow of --pair"),
        (["--pair", "a.png", "b.png", "--data", "sintel-clean=x"], "exclude each other"),
        (["--data", "sintle=x"], "unknown data set"),
        (["-w", "small", "-w", "small"], "unknown weights 'small'"),
    ],
)
def test_wrong_inputs_of_analyses(run, tmp_path, extra, message):
    code, _, err = run("analyze", "peaks", *extra, "-o", tmp_path / "out")
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


def test_two_networks_of_one_name_are_refused(weights):
    with pytest.raises(InputError, match="two weights files are called 'with'"):
        open_networks([str(weights[0]), str(weights[0])], "cpu")


def test_titles_of_two_lines_stay_inside_the_picture(pair):
    even = np.full((7, 7), 1 / 49)
    maps = [PixelMap(stride, even, (5.0, 5.0)) for stride in (64, 32, 16, 8, 4)]
    figure = draw_pixel({"before": maps, "after": maps}, pair, 20, 30)
    encode_figure(figure)
    height = figure.bbox.height
    tops = [axes.title.get_window_extent().y1 for axes in figure.axes]
    assert max(tops) < height - 4
