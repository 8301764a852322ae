"""Clips that look like other domains: exact flow, the look they claim, the command."""

import numpy as np
import pytest
import torch
from small_study import use_small_scenes

from dicl_flow.cli import main
from dicl_flow.data import list_pairs
from dicl_flow.errors import InputError
from dicl_flow.ops import warp
from dicl_flow.render import DOMAINS, FluidClip, domain_clip, load_textures
from dicl_flow.render.domains import LOOKS, Shot, fog, round_opening
from dicl_flow.render.shapes import Dice

SIZE = (48, 64)


@pytest.fixture(scope="module")
def clips():
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_scenes(monkeypatch.setattr)
        textures = load_textures(None)
        return {name: domain_clip(name, SIZE, textures, 3, seed=2) for name in DOMAINS}


@pytest.fixture(scope="module")
def frames(clips):
    return {name: clip.frames() for name, clip in clips.items()}


@pytest.mark.parametrize("name", DOMAINS)
def test_a_clip_has_frames_and_truth(name, clips, frames):
    clip, pictures = clips[name], frames[name]
    assert pictures.shape == (3, 3, *SIZE)
    assert pictures.isfinite().all()
    assert 0 <= pictures.min() < pictures.max() <= 1
    flow = clip.flow(0, 1)
    assert flow.shape == (2, *SIZE)
    assert clip.valid(flow).float().mean() > 0.5
    assert clip.occluded(0, 1).dtype == torch.bool
    assert flow[:, clip.valid(flow)].norm(dim=0).max() > 0.3  # something moves
    assert clip.frames().equal(pictures)


def test_the_looks_are_what_they_claim(clips, frames):
    red, green, blue = (frames["underwater"][:, channel].mean() for channel in range(3))
    assert red < 0.6 * min(green, blue)
    thermal = frames["thermal"]
    assert thermal[:, :1].expand_as(thermal).equal(thermal)  # grey
    assert thermal.std() < 0.2
    assert frames["night"].mean() < 0.3
    opening = round_opening(SIZE)
    assert (frames["endoscopic"][:, :, ~opening] == 0).all()
    assert not clips["endoscopic"].valid(clips["endoscopic"].flow(0, 1))[~opening].any()
    tissue = frames["endoscopic"][:, :, opening]
    assert tissue[:, 0].mean() > 1.3 * tissue[:, 2].mean()


def test_fog_hides_what_is_far():
    color = torch.rand(1, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    distance = torch.ones(1, 1, *SIZE)
    distance[..., 32:] = 4.0
    layer = torch.zeros(1, *SIZE)
    shot = Shot(color, distance, layer, color, Dice(torch.device("cpu"), 0))
    seen = fog(shot)[0]
    halves = (seen[..., :32], seen[..., 32:])
    contrast = [float(half.diff(dim=2).std()) for half in halves]
    assert contrast[1] < 0.65 * contrast[0]


def test_what_leaves_the_opening_is_hidden(clips):
    clip = clips["endoscopic"]
    ends = clip.flow(0, 1).round() + torch.stack(
        torch.meshgrid(torch.arange(64), torch.arange(48), indexing="xy")
    )
    centre = torch.tensor([31.5, 23.5])[:, None, None]
    outside = (ends - centre).norm(dim=0) > 0.56 * 48 + 0.04 * 64 + 1
    assert outside.any()
    assert clip.occluded(0, 1)[outside].all()


def test_fluid_carries_its_dots():
    """Frame 2 shows at the end of the flow what frame 1 shows, except for noise and lost dots."""
    clip = FluidClip((96, 128), 2, seed=5)
    first, second = clip.frames()[:, None]
    flow = clip.flow(0, 1)[None]
    inside = ~clip.occluded(0, 1)
    off = (warp(second, flow) - first).abs().mean(1)[0][inside].mean()
    still = (second - first).abs().mean(1)[0][inside].mean()
    assert off < 0.6 * still
    assert flow.norm(dim=1).mean() > 1


def test_fluid_flow_goes_there_and_back():
    clip = FluidClip(SIZE, 4, seed=1)
    start = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)) * 40
    there = clip.carry(start, 3)
    assert (clip.carry(there, -3) - start).abs().max() < 0.02
    assert (clip.carry(clip.carry(start, 1), 2) - there).abs().max() < 1e-3
    points, hidden = clip.tracks(20)
    assert points.shape == (20, 4, 2)
    assert (clip.carry(points[:, 0], 3) - points[:, 3]).abs().max() < 0.05
    assert not hidden.all(1).any()  # each was inside at one time


def test_nothing_is_compressed_in_the_fluid():
    """So the dots stay evenly spread."""
    clip, step = FluidClip(SIZE, 2, seed=3), 0.05
    start = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)) * 40
    ahead, down = start + torch.tensor([step, 0.0]), start + torch.tensor([0.0, step])
    here, right, below = (clip.carry(points, 1) for points in (start, ahead, down))
    across, along = (right - here) / step, (below - here) / step
    area = across[:, 0] * along[:, 1] - across[:, 1] * along[:, 0]
    assert (area - 1).abs().max() < 0.05


def test_an_unknown_domain_is_refused():
    with pytest.raises(InputError, match="unknown domain 'thermel'; did you mean 'thermal'"):
        domain_clip("thermel", SIZE, load_textures(None, size=(16, 16)), 2)
    assert set(LOOKS) < set(DOMAINS)


def render(*arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["render", "procedural", "--size", "64x48", "--quiet", *map(str, arguments)])
    return exit_info.value.code or 0


@pytest.mark.parametrize("kind", ["endoscopic", "fluid"])
def test_the_command_writes_a_clip_of_a_domain(kind, tmp_path, small_scenes):
    assert render("--kind", kind, "--frames", 2, "-o", tmp_path / "clip") == 0
    (pair,) = list_pairs("pairs", tmp_path / "clip", needs_truth=True)
    assert pair.name == "000"
    with np.load(tmp_path / "clip/tracks.npz") as tracks:
        assert tracks["points"].shape == (256, 2, 2)


def test_pairs_of_a_domain_are_refused(tmp_path, capsys):
    assert render("--kind", "fog", "-n", 2, "-o", tmp_path / "out") == 2
    assert "--kind fog is for clips: add --frames" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
