"""Rendered frames and their flow match, are reproducible, and have the asked effects."""

import json
import sys
import tomllib
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dicl_flow.cli import main
from dicl_flow.config import RenderConfig, structure, to_toml
from dicl_flow.config.render import EFFECTS
from dicl_flow.data import list_pairs, read_sample
from dicl_flow.errors import InputError
from dicl_flow.ops import warp_with_mask
from dicl_flow.render import MotionStatistics, Renderer, TextureAtlas, load_textures
from dicl_flow.render.shapes import Dice, shape_bank, smooth_noise

pytestmark = pytest.mark.heavy

CPU = torch.device("cpu")
SIZE = (96, 136)
SMALL = RenderConfig(num_shapes=32, shape_side=64)
PERFECT_CAMERA = dict.fromkeys(EFFECTS, (0.0, 0.0))
CLEAR = replace(SMALL, motion=0.4, **PERFECT_CAMERA)


@pytest.fixture(scope="module")
def textures():
    """Textures smooth enough that sampling them twice loses little."""
    noise = smooth_noise(Dice(CPU, 5), 12, (96, 128), cells=12, channels=3)
    return TextureAtlas((noise / 5 + 0.5).clamp(0, 1), noise[:0])


@pytest.fixture(scope="module")
def scenes(textures):
    """Scenes that turn, zoom, tilt and bend."""
    config = replace(CLEAR, deform_share=1.0, forward_share=0.5, perspective=0.3)
    return Renderer(config, SIZE, textures).render(16, 0)


def widen(mask, radius=2):
    """(B, H, W) bool, `radius` px larger on all sides."""
    return F.max_pool2d(mask[:, None].float(), 2 * radius + 1, 1, radius)[:, 0] > 0


def layer_edges(layer):
    """(B, H, W) bool: pixels with a neighbour of another layer."""
    values = layer[:, None].float()
    high, low = F.max_pool2d(values, 3, 1, 1), -F.max_pool2d(-values, 3, 1, 1)
    return (high != low)[:, 0]


def warping_error(rendered, flow):
    """Mean difference from frame 1 of frame 2 warped, away from edges and occlusions."""
    clean = ~widen(rendered.occluded | layer_edges(rendered.layer))
    warped, inside = warp_with_mask(rendered.image2, flow)
    return float((warped - rendered.image1).abs().mean(1)[clean & inside[:, 0]].mean())


def test_frame_2_warped_by_the_flow_is_frame_1(scenes):
    assert scenes.flow.norm(dim=1).quantile(0.9) > 10
    assert scenes.image1.std() > 0.1
    floor = 0.001  # a quarter of a grey level of 8 bits: the textures are sampled twice
    assert warping_error(scenes, scenes.flow) < floor
    assert warping_error(scenes, -scenes.flow) > 50 * floor
    for shift in ([0.5, 0.0], [0.0, -0.5]):
        wrong = scenes.flow + torch.tensor(shift).view(1, 2, 1, 1)
        assert warping_error(scenes, wrong) > 8 * floor


def test_motion_is_not_rigid_and_differs_between_layers(scenes):
    corner = scenes.flow[..., :2, :2] - scenes.flow[..., -2:, -2:]
    assert corner.abs().mean() > 1
    assert layer_edges(scenes.layer).any(2).any(1).all()


def splat_occlusion(flow, layer):
    """Throw each pixel of frame 1 onto the four pixels around its target: is a nearer one there?"""
    height, width = layer.shape
    y, x = np.mgrid[:height, :width]
    target_x, target_y = x + flow[0], y + flow[1]
    nearest = np.full((height, width), -1)
    for dx, dy in ((0, 0), (0, 1), (1, 0), (1, 1)):
        column, row = np.floor(target_x).astype(int) + dx, np.floor(target_y).astype(int) + dy
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        np.maximum.at(nearest, (row[inside], column[inside]), layer[inside])
    column, row = np.rint(target_x).astype(int), np.rint(target_y).astype(int)
    outside = (column < 0) | (column >= width) | (row < 0) | (row >= height)
    return outside | (nearest[row.clip(0, height - 1), column.clip(0, width - 1)] > layer)


def test_occlusion_agrees_with_a_forward_splat(textures):
    # small objects inside the frame: a splat from frame 1 cannot know what enters it
    config = replace(CLEAR, margin=0.0, large_share=0.0, object_radius=(0.1, 0.3))
    scenes = Renderer(config, SIZE, textures).render(16, 1)
    splat = np.stack(
        [
            splat_occlusion(f.numpy(), n.numpy())
            for f, n in zip(scenes.flow, scenes.layer, strict=True)
        ]
    )
    splat = torch.from_numpy(splat)
    # an edge may lie half a pixel off: compare where both agree with all their neighbours
    sure = ~(layer_edges(splat) | layer_edges(scenes.occluded))
    assert 0.03 < scenes.occluded[sure].float().mean() < 0.5
    agree = (splat == scenes.occluded)[sure].float().mean()
    overlap = (splat & scenes.occluded)[sure].sum() / (splat | scenes.occluded)[sure].sum()
    assert agree > 0.99
    assert overlap > 0.9


def test_pixels_that_leave_the_frame_are_occluded(scenes):
    height, width = SIZE
    x = torch.arange(width) + scenes.flow[:, 0]
    y = torch.arange(height)[:, None] + scenes.flow[:, 1]
    outside = (x < -0.51) | (x > width - 0.49) | (y < -0.51) | (y > height - 0.49)
    assert outside.any()
    assert scenes.occluded[outside].all()


def test_the_same_seed_and_step_give_the_same_scenes(textures):
    renderer = Renderer(SMALL, (32, 48), textures, seed=3)
    first, again, other = renderer.render(2, 7), renderer.render(2, 7), renderer.render(2, 8)
    shape_bank.cache_clear()
    twin = Renderer(SMALL, (32, 48), textures, seed=3).render(2, 7)
    stranger = Renderer(SMALL, (32, 48), textures, seed=4).render(2, 7)
    for name in ("image1", "image2", "flow", "valid", "layers", "occluded"):
        assert torch.equal(getattr(first, name), getattr(again, name))
        assert torch.equal(getattr(first, name), getattr(twin, name))
    for different in (other, stranger):
        assert not torch.equal(first.flow, different.flow)
        assert not torch.equal(first.image1, different.image1)


def test_renderers_of_several_sizes_share_their_shapes(textures):
    wide, narrow, other = (
        Renderer(SMALL, size, textures, seed=seed).shapes
        for size, seed in (((32, 48), 3), ((16, 32), 3), ((32, 48), 4))
    )
    assert wide is narrow
    assert not torch.equal(wide, other)


def test_scenes_stay_the_same_in_later_versions(textures):
    """Held-out scenes and calibration are drawn again from their seeds."""
    config = replace(SMALL, depth_share=0.5)
    scenes = Renderer(config, (32, 48), textures, seed=3).render(4, 7)
    for values, means in (
        (scenes.image1, [0.49351, 0.65499, 0.66965, 0.39814]),
        (scenes.image2, [0.3624, 0.63172, 0.67097, 0.41067]),
        (scenes.flow, [-1.67962, 0.59128, 0.24715, -5.56465]),
        (scenes.layer.float(), [1.28125, 1.01562, 0.58854, 3.22852]),
    ):
        assert values.flatten(1).mean(1).tolist() == pytest.approx(means, abs=1e-4)


@pytest.mark.parametrize("name", EFFECTS)
def test_each_effect_changes_the_frames_and_not_the_truth(textures, name):
    size = (41, 54)  # no multiple of anything
    plain = Renderer(CLEAR, size, textures).render(3, 2)
    # the motion is drawn before the effects, so the scenes stay the same
    changed = Renderer(replace(CLEAR, **{name: (1.0, 0.9)}), size, textures).render(3, 2)
    assert torch.equal(plain.flow, changed.flow)
    assert torch.equal(plain.occluded, changed.occluded)
    assert (plain.image2 - changed.image2).abs().mean() > 1e-3
    for image in (changed.image1, changed.image2):
        assert image.dtype == torch.float32
        assert 0 <= image.min() <= image.max() <= 1
    same_before = torch.allclose(plain.image1, changed.image1, atol=1e-3)
    assert same_before == (name == "color_change")  # the only one that spares frame 1


def test_a_share_of_the_scenes_has_an_effect(textures):
    def changed(batch, step):
        plain, noisy = (
            Renderer(replace(CLEAR, num_shapes=1, compression=setting), (16, 16), textures)
            for setting in ((0.0, 0.0), (0.3, 1.0))
        )
        difference = plain.render(batch, step).image1 - noisy.render(batch, step).image1
        return (difference.abs().amax((1, 2, 3)) > 1e-2).float().mean()

    assert 0.2 < changed(200, 0) < 0.31  # few are too weak to see
    assert 0.1 < sum(changed(1, step) for step in range(40)) / 40 < 0.55


def test_motion_blur_follows_the_motion(textures):
    """Where things move sideways, sideways detail goes and the other stays."""
    config = replace(CLEAR, motion=3.0, horizontal_share=1.0, tiny_share=0.0, deform_share=0.0)
    sharp = Renderer(config, SIZE, textures).render(8, 0)
    blurred = Renderer(replace(config, motion_blur=(1.0, 1.0)), SIZE, textures).render(8, 0)

    def detail(rendered, dim):
        return float(rendered.image1.diff(dim=dim).abs().mean())

    kept_x, kept_y = (detail(blurred, dim) / detail(sharp, dim) for dim in (3, 2))
    assert kept_x < kept_y - 0.05


def test_rendering_never_waits_for_the_device(textures):
    """No operation whose result or shape the host must know, so it runs ahead or in a graph."""

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
            name = str(operation)
            waits = ("_local_scalar", "nonzero", "masked_select")
            assert not any(word in name for word in waits)
            if "index" in name:
                indices = arguments[1] if isinstance(arguments[1], list | tuple) else ()
                assert all(index is None or index.dtype != torch.bool for index in indices)
            return operation(*arguments, **(keywords or {}))

    everything = replace(SMALL, depth_share=0.5, still_scenes=0.5, blank_scenes=0.5)
    for config in (SMALL, everything):
        renderer = Renderer(config, (32, 48), textures)
        with Operations():
            renderer.render(2, 0)


def test_positions_do_not_suffer_from_fast_matrix_products(textures):
    renderer = Renderer(SMALL, (32, 48), textures)
    exact = renderer.render(2, 0)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", torch.bfloat16):
        fast = renderer.render(2, 0)
    torch.set_float32_matmul_precision(precision)
    assert torch.equal(fast.flow, exact.flow)
    assert torch.allclose(fast.image1, exact.image1, atol=0.03)


def test_motion_of_the_default_covers_what_is_known_to_work(textures):
    """FlyingChairs' quantiles 50 and 90 %: background 2 and 20 px, objects 12 and 65 px more."""
    config = replace(SMALL, shape_side=32, **PERFECT_CAMERA)
    renderer, statistics = Renderer(config, (96, 144), textures), MotionStatistics()
    for step in range(4):
        statistics.add(renderer.render(24, step))
    values = statistics.summary()
    assert 1 < values["background_p50"] < 12
    assert 15 < values["background_p90"] < 60
    assert 5 < values["objects_p50"] < 25
    assert 30 < values["objects_p90"] < 100
    assert values["all_max"] > 150
    lengths = np.linalg.norm(statistics.vectors()["all"], axis=1)
    assert (lengths < 0.5).mean() > 0.03  # still cameras
    assert 0.05 < values["occluded"] < 0.4


def test_motion_factor_scales_the_motion(textures):
    lengths = [
        Renderer(replace(CLEAR, motion=motion), SIZE, textures).render(8, 0).flow.norm(dim=1).mean()
        for motion in (0.0, 0.1, 1.0)
    ]
    assert lengths[0] < 1e-3
    assert 4 < lengths[2] / lengths[1] < 25


def test_drawn_lengths_have_the_quantiles_of_the_config():
    config = RenderConfig()
    lengths = Dice(CPU, 0).lengths(100_000, quantiles=config.object_shift)
    for share, expected in zip((0.5, 0.75, 0.9, 0.95, 0.99, 1), config.object_shift, strict=True):
        assert float(lengths.quantile(share)) == pytest.approx(expected, rel=0.03)


def test_flow_beyond_the_limit_is_not_valid(textures):
    rendered = Renderer(replace(CLEAR, max_flow=5.0), SIZE, textures).render(4, 0)
    assert torch.equal(rendered.valid, rendered.flow.norm(dim=1) <= 5)
    assert 0.05 < rendered.valid.float().mean() < 0.95
    batch = rendered.to_batch()
    assert batch.valid is rendered.valid
    assert batch.image1.shape == (4, 3, *SIZE)


def test_shapes_are_distances_and_leave_the_border_free():
    side = 96
    bank = shape_bank(CPU, 1, 64, side)
    assert bank.shape == (64, 1, side, side)
    assert (bank[..., 0, :] < 0).all()
    assert (bank[..., :, -1] < 0).all()
    inside = (bank > 0).float().mean((1, 2, 3))
    assert (inside > 0.005).float().mean() > 0.95  # thin ones as well; few are cut to nothing
    assert (inside < 0.9).all()
    # one pixel further is one pixel further, at most outlines
    slope = torch.hypot(*torch.gradient(bank[:, 0], spacing=2 / (side - 1), dim=(1, 2)))
    edge = bank[:, 0].abs() < 2 / side
    assert 0.8 < slope[edge].median() < 1.2


def write_photos(folder, count=3):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        photo = np.random.default_rng(number).integers(0, 256, (40 + number, 60, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number}.jpg"), photo)
    return folder


def test_photographs_fill_the_atlas(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    tall = np.zeros((400, 100, 3), np.uint8)
    tall[:, :, 2] = 255  # OpenCV's red
    cv2.imwrite(str(folder / "red.png"), tall)
    atlas = load_textures(folder, size=(32, 48))
    assert (atlas.num_photos, atlas.size) == (1, (32, 48))
    assert torch.equal(atlas.images[0, :, 0, 5, 5], torch.tensor([1.0, 0, 0]))
    assert load_textures(write_photos(tmp_path / "many"), size=(32, 48), limit=2).num_photos == 2
    none = load_textures(None, size=(32, 48))
    assert none.num_photos == 0
    assert none.images.std() > 0.1


def test_photographs_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_textures(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no photographs"):
        load_textures(tmp_path)
    broken = write_photos(tmp_path / "photos") / "broken.jpg"
    broken.write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"broken\.jpg"):
        load_textures(broken.parent, size=(32, 48))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"motion": -1.0}, "motion must be in"),
        ({"fog": (2.0, 0.5)}, "fog must be in"),
        ({"object_shift": (1.0, 2.0)}, "six increasing lengths"),
        ({"background_shift": (5.0, 4.0, 6.0, 7.0, 8.0, 9.0)}, "six increasing lengths"),
        ({"object_radius": (0.5, 0.1)}, "smallest, largest"),
        ({"objects": (0, 0)}, "at least one"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        RenderConfig(**changes)


def test_statistics_without_matplotlib_say_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = ("procedural", "-o", tmp_path / "out", "--stats", tmp_path / "stats.png")
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert "pip install 'dicl-flow[train]'" in error
    assert not (tmp_path / "out").exists()


def test_settings_survive_a_recipe():
    config = RenderConfig(motion=0.5, fog=(0.5, 0.25))
    assert structure(RenderConfig, tomllib.loads(to_toml(config))) == config
    with pytest.raises(InputError, match="did you mean 'defocus'"):
        structure(RenderConfig, {"defocuss": [0.1, 0.2]})


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["render", *map(str, arguments)])
    return (stop.value.code, *capsys.readouterr())


@pytest.mark.usefixtures("small_scenes")
def test_the_command_writes_pairs_that_training_reads(tmp_path, capsys):
    folder, stats = tmp_path / "new" / "scenes", tmp_path / "stats.png"
    photos = write_photos(tmp_path / "photos")
    options = ("-n", 2, "-o", folder, "--size", "96x64", "--stats", stats, "--json")
    code, output, _ = run(capsys, photos, *options)
    assert code == 0
    summary = json.loads(output)
    assert summary["pairs"] == 2
    assert summary["written"] == [str(folder), str(folder / "sheet.png"), str(stats)]
    pairs = list_pairs("pairs", folder, needs_truth=True)
    assert [pair.name for pair in pairs] == ["scene_0000", "scene_0001"]
    sample = read_sample(pairs[1])
    assert sample.image1.shape == (64, 96, 3)
    assert sample.valid.all()
    hidden = cv2.imread(str(folder / "scene_0001_occ.png"))[..., 0] > 0
    np.testing.assert_array_equal(sample.occluded, hidden)
    assert 0 < hidden.mean() < 1
    assert cv2.imread(str(folder / "sheet.png")).shape[1] > 1000
    assert cv2.imread(str(stats)).shape[1] > 1000


@pytest.mark.usefixtures("small_scenes")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "-o", "out"], "no folder of photographs nowhere"),
        ([".", "-o", "out"], "no photographs"),
        (["procedural", "-o", "out", "--size", "big"], "--size must be WIDTHxHEIGHT"),
        (["procedural", "-o", "out", "--size", "8x300"], "at least 16 px"),
        (["procedural", "-o", "out", "--motion", "-2"], "--motion"),
        (["procedural", "-o", "out", "--stats", "stats.pdf"], "must end in .png"),
        (["procedural", "-o", "file"], "not a folder"),
    ],
)
def test_wrong_inputs_are_explained(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
