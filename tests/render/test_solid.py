"""Solid scenes: exact flow, occlusion and distance; every kind of place; clips and tracks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_study import use_small_scenes

from dicl_flow.cli import main
from dicl_flow.config import PLACES, Place, RenderConfig, WorldConfig
from dicl_flow.config.render import EFFECTS
from dicl_flow.data import list_pairs, read_sample
from dicl_flow.errors import InputError
from dicl_flow.ops import sampling_grid
from dicl_flow.render import Clip, Renderer, load_textures, tracking_clip
from dicl_flow.render.domains import LOOKS
from dicl_flow.render.renderer import draw_worlds
from dicl_flow.render.shapes import shape_bank
from dicl_flow.render.solid import casting
from dicl_flow.render.solid.casting import View
from dicl_flow.render.solid.shading import shade
from dicl_flow.render.solid.things import (
    BOX,
    CUTOUT,
    CYLINDER,
    GROUND,
    MAKERS,
    SKY,
    Body,
    Draws,
    Joint,
)
from dicl_flow.render.solid.world import Layout, Textures, World, draw_world, lay_out

SIZE = (48, 80)
CLEAR = RenderConfig(
    **dict.fromkeys(EFFECTS, (0.0, 0.0)), num_shapes=16, shape_side=32, solid_share=1.0
)
NUMBERS = Textures(0, 6, 0.1)
NO_FOG = torch.zeros(1, 4)


@pytest.fixture(scope="module")
def textures():
    return load_textures(None, size=(64, 64))


@pytest.fixture(scope="module")
def shapes():
    return shape_bank(torch.device("cpu"), 0, CLEAR.num_shapes, CLEAR.shape_side)


def world_of(kind, seed=0, config=CLEAR, size=SIZE):
    return draw_world(config, Draws(seed), size, NUMBERS, kind)


def in_double(layout):
    return Layout(layout.pose.double(), layout.skin.double(), layout.scene.double(), layout.count)


def view_of(world, shapes, times=(0.0, 1.0), size=SIZE):
    return View(in_double(lay_out([world], times, size)), shapes.double(), size)


# ---- by hand -------------------------------------------------------------------------------------


def rotation(vector):
    """The exponential of a cross product, summed up term by term."""
    x, y, z = vector
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]], float)
    total, term = np.eye(3), np.eye(3)
    for number in range(1, 40):
        term = term @ cross / number
        total = total + term
    return total


def simple_world(body, thing, camera, focal=60.0):
    """A sky and one body: (form, size, place, turn, joint) with the motion of its thing."""
    world = World(focal)
    zero = (0.0,) * 3
    world.things = [(*zero, *zero, *zero, *zero, 0.0), thing]
    joint = body.joint
    turn = (0.0,) * 9
    if joint is not None:
        turn = (*joint.axis, *joint.pivot, joint.rate, joint.swing, joint.phase)
    wave = (2.0, 1.0, 0.3, 0.1, 0.05, 0.7) if body.form == CUTOUT else (0.0,) * 6
    skin = (0.0, 0.5, 0.5, 10.0, 1.0, 1.0, 1.0)
    for number, part, moves in ((0, Body(SKY, (1, 1, 1)), (0.0,) * 9), (1, body, turn)):
        wave_of = wave if number else (0.0,) * 6
        world.bodies.append(
            (
                *(float(part.form), *part.size, *part.place, *part.turn, float(number), *moves),
                *(*skin, 0.0, 0.0, 0.0, *wave_of, 0.0),
            )
        )
    world.camera = (*camera, 0.0, 0.0, 1.0, 0.0, 1e-9)
    world.light = (0.0, -1.0, 0.0, 1.0, 0.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return world


THING = (0.4, -0.5, 6.0, 0.1, 0.3, -0.2, 0.3, 0.1, -0.4, 0.05, 0.1, 0.02, 0.0)
CAMERA = (0.1, -0.8, 0.0, 0.05, -0.04, 0.02, 0.2, -0.05, 0.5, 0.01, 0.03, -0.02)


def follow(point, body, time):
    """Where a point of the body, in its own axes in metres, is for the camera, step by step."""
    place, heading, velocity, spin = (np.array(THING[i : i + 3]) for i in (0, 3, 6, 9))
    in_thing = rotation(body.turn) @ point + np.array(body.place)
    if body.joint is not None:
        joint = body.joint
        angle = joint.rate * time
        if joint.swing:
            angle = joint.swing * math.sin(joint.rate * time + joint.phase)
        pivot = np.array(joint.pivot)
        in_thing = pivot + rotation(np.array(joint.axis) * angle) @ (in_thing - pivot)
    in_world = rotation(spin * time) @ rotation(heading) @ in_thing + place + velocity * time
    start, tilt, speed, turn = (np.array(CAMERA[i : i + 3]) for i in (0, 3, 6, 9))
    to_world = rotation(turn * time) @ rotation(tilt)
    return to_world.T @ (in_world - start - speed * time)


BODIES = {
    "box": Body(BOX, (0.8, 0.5, 0.6), (0.1, 0.2, -0.1), (0.2, 0.4, 0.1)),
    "wheel": Body(
        CYLINDER, (0.7, 0.3, 0.7), turn=(0, 0, 1.5), joint=Joint((1.0, 0, 0), (0, 0.1, 0), 0.4)
    ),
    "leg": Body(CYLINDER, (0.4, 0.9, 0.4), joint=Joint((1.0, 0, 0), (0, -0.9, 0), 0.8, 0.5, 0.3)),
}


@pytest.mark.parametrize("name", BODIES)
def test_points_are_followed_by_hand(name, shapes):
    body = BODIES[name]
    world = simple_world(body, THING, CAMERA)
    view = view_of(world, shapes)
    flow, points = view.flow(0, 1)[0], view.points[0]
    rows, columns = (view.body[0] == 1).nonzero().T.tolist()
    assert len(rows) > 50
    half = np.array([(SIZE[1] - 1) / 2, (SIZE[0] - 1) / 2])
    for row, column in list(zip(rows, columns, strict=True))[::7]:
        own = points[:, row, column].numpy() * np.array(body.size)
        before, after = follow(own, body, 0.0), follow(own, body, 1.0)
        assert before[2] == pytest.approx(float(view.distance[0, row, column]), abs=1e-5)
        start = before[:2] / before[2] * world.focal + half
        end = after[:2] / after[2] * world.focal + half
        np.testing.assert_allclose(start, [column, row], atol=1e-4)
        np.testing.assert_allclose(end - start, flow[:, row, column].numpy(), atol=1e-4)


def test_paper_bends_and_is_followed(shapes):
    """A place on the paper, found in both frames, is where the flow says."""
    world = simple_world(Body(CUTOUT, (2.5, 1.8, 1.0)), THING, CAMERA)
    view = view_of(world, shapes)
    skin, bends = view.layout.skin[0, 1], view.layout.pose[:, 0, 1, 24]
    assert abs(float(bends[1] - bends[0])) > 0.1
    q = view.points[0][:, view.body[0] == 1]
    assert q.shape[1] > 50
    moved = casting.move(view.layout, 0, torch.ones(q.shape[1]), q, 0, 1)
    pose = view.layout.pose[1, 0, 1]
    back = casting.turn(pose[:9], moved) + pose[9:12, None]
    there = casting.paper(skin, bends[1], back[:2])
    torch.testing.assert_close(there, casting.paper(skin, bends[0], q[:2]), atol=1e-6, rtol=0)
    assert back[2].abs().max() < 1e-5


# ---- what is seen --------------------------------------------------------------------------------


def evenly_lit(world):
    """The same world in even light, without gloss and reflections."""
    world.bodies = [(*row[:27], 0.0, 0.0, *row[29:]) for row in world.bodies]
    world.light = (*world.light[:3], 1.0, 0.0, world.light[5], 0.0, *world.light[7:])
    return world


@pytest.mark.parametrize("kind", PLACES)
def test_frame_2_warped_by_the_truth_is_frame_1(kind, textures, shapes):
    size, config = (96, 160), replace(CLEAR, motion=0.3)
    world = evenly_lit(world_of(kind, 4, config, size))
    layout = lay_out([world], (0.0, 1.0), size)
    view = View(layout, shapes, size)
    color, _ = shade(view, textures.mips, NO_FOG)
    flow, occluded = view.flow(0, 1), view.occluded()
    warped = F.grid_sample(color[1:], sampling_grid(flow), align_corners=True)
    error = (warped - color[:1]).abs().amax(1)
    assert not occluded.all()
    assert error[~occluded].median() < 2 / 255
    # and not for want of motion: without the flow the frames differ more
    assert (color[1:] - color[:1]).abs().amax(1)[~occluded].mean() > error[~occluded].mean()


@pytest.mark.parametrize("kind", PLACES)
def test_occlusion_agrees_with_a_look_from_both_sides(kind, shapes):
    """Where flow forth and back cancel out a point is seen; where it ends far off, it is not."""
    view = view_of(world_of(kind, 2), shapes)
    flow, occluded = view.flow(0, 1), view.occluded()
    back = F.grid_sample(view.flow(1, 0), sampling_grid(flow), mode="nearest", align_corners=True)
    gap = (flow + back).norm(dim=1)
    inside = ~casting.is_outside(
        (flow[0] + torch.stack(torch.meshgrid(
            torch.arange(SIZE[1]), torch.arange(SIZE[0]), indexing="xy"))), SIZE
    )[None]  # fmt: skip
    layer1, layer2 = view.layer.float().chunk(2)
    seen = F.grid_sample(
        layer2[:, None], sampling_grid(flow).float(), mode="nearest", align_corners=True
    )[:, 0]
    same = inside & (seen == layer1) & (gap < 0.5)
    other = inside & (seen != layer1) & (gap > 8)
    assert (occluded & same).sum() <= 0.01 * same.sum()
    if other.sum() > 20:
        assert (~occluded & other).sum() <= 0.1 * other.sum()
    assert occluded[~inside].all()


def test_stereo_moves_sideways_only(shapes):
    seeds = range(200)
    place = replace(PLACES["street"], camera={"stereo": 1.0})
    worlds = [build(place, seed) for seed in list(seeds)[:4]]
    for world in worlds:
        view = view_of(world, shapes)
        flow = view.flow(0, 1)
        near = view.distance[:1] < 1e5
        assert flow[:, 1].abs().max() < 1e-4
        disparity = flow[:, 0].abs() * view.distance[:1]
        assert disparity[near].std() < 1e-4 * disparity[near].mean()  # inverse to distance


def build(place, seed):
    from dicl_flow.render.solid.world import _Builder

    return _Builder(CLEAR, Draws(seed), SIZE, NUMBERS, place, 70.0).build()


def test_normals_are_perpendicular_to_the_surface(shapes):
    """On flat faces, the difference of neighbouring points is at right angles to the normal."""
    view = view_of(world_of("street", 1), shapes)
    rays, body = casting.rays(view.layout.scene[0, 0], SIZE), view.body[0].long()
    matrix, form = view.layout.pose[0, 0, :, :9][body], view.layout.skin[0, :, 0][body]
    normal = casting.normals(matrix.movedim(-1, 0), form, view.points[0], rays)
    point = view.distance[0] * rays
    same = (body[:, 1:] == body[:, :-1]) & (normal[:, :, 1:] == normal[:, :, :-1]).all(0)
    flat = same & (body[:, 1:] > 0)
    step = (point[:, :, 1:] - point[:, :, :-1])[:, flat]
    lean = (step * normal[:, :, 1:][:, flat]).sum(0).abs() / step.norm(dim=0)
    assert flat.sum() > 200
    assert lean.max() < 1e-6
    assert ((normal * rays).sum(0) <= 0).all()  # towards the camera


def test_shadows_lie_away_from_the_sun(textures, shapes):
    """A box above the ground darkens the ground where the line to the sun meets the box."""
    world = evenly_lit(world_of("landscape"))
    zero = (0.0,) * 3
    rest = (*zero, *zero, 0.0, 0.0, 0.0)
    skin = (0.0, 0.5, 0.5, 1e-3, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, *[0.0] * 6, 0.0)

    def row(form, size, place):
        return (float(form), *size, *place, *zero, 0.0, *rest, *skin)

    one = (1.0, 1.0, 1.0)
    world.bodies = [row(SKY, one, zero), row(GROUND, one, zero)]
    world.bodies.append(row(BOX, (1.0, 0.5, 1.0), (-1.0, -2.0, 8.0)))
    world.things = [(*zero, *zero, *zero, *zero, 0.0)]
    world.camera = (0.0, -3.0, 0.0, -0.3, 0.0, 0.0, *zero, *zero, 0.0, 0.0, 1.0, 0.0, 0.05)
    sun = np.array([-0.6, -1.0, 0.2]) / np.linalg.norm([-0.6, -1.0, 0.2])
    world.light = (*sun, 0.3, 1.0, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    layout = lay_out([world], (0.0,), SIZE)
    view = View(layout, shapes, SIZE)
    color, _ = shade(view, textures.mips, NO_FOG)
    point = view.points[0]  # of the ground: in the world
    on_ground = view.body[0] == 1
    rise = (2.0 - point[1]) / -sun[1]  # up to the middle of the box
    x, z = point[0] + rise * sun[0] + 1.0, point[2] + rise * sun[2] - 8.0
    deep = on_ground & (x.abs() < 0.6) & (z.abs() < 0.6)
    clear = on_ground & ((x.abs() > 1.6) | (z.abs() > 1.6)) & (view.distance[0] < 30)
    assert deep.sum() > 5
    assert color[0].mean(0)[deep].max() < 0.6 * color[0].mean(0)[clear].min()


def test_an_edge_is_smooth(textures, shapes):
    """A pixel at an edge is a mixture of what is on both sides."""
    body = Body(BOX, (0.9, 0.9, 0.1), turn=(0.0, 0.0, 0.3))
    thing = (0.0, 0.0, 6.0, *[0.0] * 10)
    world = simple_world(body, thing, (0.0,) * 12)
    black = [
        (*row[:24], *([0.0] * 3 if n else [1.0] * 3), *row[27:])
        for n, row in enumerate(world.bodies)
    ]
    world.bodies = black
    layout = lay_out([world], (0.0,), SIZE)
    view = View(layout, shapes, SIZE)
    color = shade(view, textures.mips, NO_FOG)[0][0].mean(0)
    sky = color[0].min()
    mixed = (color > 0.1 * sky) & (color < 0.7 * sky)
    assert mixed.sum() > 20


# ---- batches, clips ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PLACES)
def test_every_kind_renders_the_same_bytes_for_a_seed(kind, textures):
    config = replace(RenderConfig(num_shapes=16, shape_side=32).only(kind), tiny_share=0.0)
    one, two = (Renderer(config, (32, 48), textures, seed=5).render(2, 7) for _ in range(2))
    for name in ("image1", "image2", "flow", "valid", "layers", "occluded"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert one.image1.isfinite().all()
    assert one.image1.std() > 0.02
    assert one.valid.any()
    assert not torch.equal(one.image1[0], one.image1[1])
    assert not torch.equal(
        one.image1, Renderer(config, (32, 48), textures, seed=6).render(2, 7).image1
    )


def test_batches_take_turns():
    sizes = ((128, 128), (128, 256))
    config = replace(CLEAR, solid_share=2 / 3, sizes=sizes)
    renderer = Renderer(config, (32, 48), load_textures(None, size=(32, 32)))
    kinds = [renderer.is_solid(step) for step in range(6 * 3)]
    assert kinds[::2] == kinds[1::2]  # all sizes of a round are alike
    assert sum(kinds) == 12
    assert not any(
        Renderer(RenderConfig(num_shapes=1), (32, 48), renderer.textures).is_solid(s)
        for s in range(9)
    )


def test_worlds_do_not_depend_on_the_batch():
    three = draw_worlds(CLEAR, SIZE, NUMBERS, 3, seed=1, step=2)
    assert draw_worlds(CLEAR, SIZE, NUMBERS, 1, seed=1, step=2)[0] == three[0]
    together = lay_out(three, (0.0, 1.0), SIZE)
    alone = lay_out(three[1:2], (0.0, 1.0), SIZE)
    count = int(alone.count[0])
    assert torch.equal(together.pose[:, 1, :count], alone.pose[:, 0, :count])


def test_every_thing_can_be_made():
    for name, maker in MAKERS.items():
        for seed in range(20):
            bodies = maker(Draws(seed), 3.0).bodies
            assert bodies, name
            assert all(side > 0 for body in bodies for side in body.size), name
    places = [
        *PLACES.values(),
        *(place for look in LOOKS.values() for place in look.places if not isinstance(place, str)),
    ]
    named = {crowd.thing for place in places for crowd in place.crowds}
    assert named == set(MAKERS)


def test_tracks_agree_with_flow_and_occlusion(textures):
    clip = Clip(replace(CLEAR, motion=0.5), SIZE, textures, "street", 4, seed=3)
    frames = clip.frames()
    assert frames.shape == (4, 3, *SIZE)
    points, hidden = clip.tracks(200)
    assert points.shape == (200, 4, 2)
    assert hidden.shape == (200, 4)
    start = points[:, 0]
    begins = ~hidden[:, 0] & (start == start.round()).all(1)  # drawn in frame 0
    assert begins.sum() > 20
    column, row = start[begins].long().T
    for end in range(1, 4):
        flow = clip.flow(0, end)[:, row, column].T
        torch.testing.assert_close(points[begins, end] - start[begins], flow, atol=2e-3, rtol=0)
        assert torch.equal(hidden[begins, end], clip.occluded(0, end)[row, column])


@pytest.mark.parametrize("kind", ["motorway", "floating"])
def test_points_of_clips_for_tracks_are_hidden_leave_and_return(textures, kind):
    clip = tracking_clip(SIZE, textures, kind, 24, seed=4, config=CLEAR)
    points, hidden = clip.tracks(150)
    high = torch.tensor([SIZE[1], SIZE[0]]) - 0.5
    outside = ((points < -0.5) | (points > high)).any(-1)
    seen_before, seen_later = (~hidden).cummax(1)[0], (~hidden).flip(1).cummax(1)[0].flip(1)
    between = seen_before & seen_later
    assert (between & hidden & ~outside).any()
    assert (between & outside).any()
    assert (~hidden).float().mean() > 0.4


def test_long_clips_for_tracks_move_more_slowly(textures):
    short, long = (
        tracking_clip(SIZE, textures, "street", number, seed=3, config=CLEAR) for number in (2, 24)
    )
    assert long.config.motion == pytest.approx(short.config.motion * 16 / 24)
    assert 0 < long.flow(0, 1).norm(dim=0).median() < short.flow(0, 1).norm(dim=0).median()


def test_flow_of_two_frames_is_that_of_the_pair(textures):
    clip = Clip(CLEAR, SIZE, textures, "room", 3, seed=1)
    direct, first = clip.flow(0, 2), clip.flow(0, 1)
    second = F.grid_sample(clip.flow(1, 2)[None], sampling_grid(first[None]), align_corners=True)[0]
    seen = ~clip.occluded(0, 1) & ~clip.occluded(0, 2)
    gap = (direct - first - second).norm(dim=0)[seen]
    assert gap.median() < 0.05


def test_motion_is_that_of_the_documentation(shapes):
    """In frames 640 px wide half of the pixels move by more than 5 px, one in ten by over 40."""
    lengths = []
    for number, kind in enumerate([*PLACES] * 4):
        world = world_of(kind, number, replace(CLEAR, tiny_share=0.15), (384, 640))
        world.focal /= 8  # the same view in small frames
        view = View(lay_out([world], (0.0, 1.0), SIZE), shapes, SIZE)
        lengths.append(8 * view.flow(0, 1).norm(dim=1).flatten())
    length = torch.cat(lengths)
    assert 5 < length.median() < 25
    assert 40 < length.quantile(0.9) < 130


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: WorldConfig(places=()), "world.places is empty"),
        (lambda: WorldConfig(places=("stret",)), "did you mean 'street'"),
        (lambda: WorldConfig(bodies=0), "world.bodies must be"),
        (lambda: WorldConfig(thing_scale=(-1.0, 1.0)), "world.thing_scale must be positive"),
        (lambda: WorldConfig(focal=(0.0, 1.0)), "world.focal must be"),
        (lambda: WorldConfig(turn=2.0), "world.turn must be"),
        (lambda: WorldConfig(reflection=(2.0, 0.1)), "world.reflection must be"),
        (lambda: Place(crowds=(), camera={}), "at least one crowd"),
        (lambda: Place(crowds=PLACES["room"].crowds, camera={"fly": 1}), "unknown movement"),
        (lambda: RenderConfig().only("rom"), "did you mean 'room'"),
        (lambda: RenderConfig(solid_share=1.5), "solid_share must be"),
        (lambda: Clip(CLEAR, SIZE, load_textures(None, size=(16, 16)), "room", 0), "1 to 10000"),
    ],
)
def test_broken_settings_are_refused(make, told):
    with pytest.raises(InputError, match=told):
        make()


# ---- the command ---------------------------------------------------------------------------------


def render(*arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["render", "procedural", "--size", "64x48", "--quiet", *map(str, arguments)])
    return exit_info.value.code or 0


def test_the_command_writes_a_clip(tmp_path, monkeypatch):
    use_small_scenes(monkeypatch.setattr)
    assert render("--kind", "street", "--frames", 3, "-o", tmp_path / "clip") == 0
    pairs = list_pairs("pairs", tmp_path / "clip", needs_truth=True)
    assert [pair.name for pair in pairs] == ["000", "001"]
    sample = read_sample(pairs[0])
    assert sample.flow.shape == (48, 64, 2)
    assert sample.occluded is not None
    with np.load(tmp_path / "clip/tracks.npz") as tracks:
        assert tracks["points"].shape == (256, 3, 2)
        assert tracks["occluded"].dtype == bool


def test_the_command_writes_pairs_of_a_kind(tmp_path, monkeypatch):
    use_small_scenes(monkeypatch.setattr)
    assert render("--kind", "room", "-n", 1, "-o", tmp_path / "pairs") == 0
    assert len(list_pairs("pairs", tmp_path / "pairs", needs_truth=True)) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kind", "rom"], "did you mean 'room'"),
        (["--frames", "4"], "--frames needs a solid scene"),
        (["--kind", "room", "--frames", "0"], "--frames must be positive"),
        (["--kind", "room", "--frames", "2", "--stats", "x.png"], "--stats is for pairs"),
    ],
)
def test_what_cannot_be_rendered_is_refused(arguments, told, tmp_path, capsys):
    assert render(*arguments, "-o", tmp_path / "out") == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
