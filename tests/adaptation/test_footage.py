"""Which frames and pairs are used: no cuts, no duplicates, nothing held back in training."""

from itertools import pairwise

import cv2
import numpy as np
import pytest
from clips import write_video
from small_adaptation import moving_picture, write_footage

from dicl_flow.adaptation.footage import (
    ClipScan,
    FootagePair,
    UsableFrame,
    choose_pairs,
    list_clips,
    scan_clip,
    speed_bins,
    spread,
    store_frames,
    stored_size,
    time_parts,
)
from dicl_flow.adaptation.settings import AdaptConfig
from dicl_flow.errors import InputError

SETTINGS = AdaptConfig()


def scan(count, shots=(0,), speed=1.0):
    """A clip of `count` frames; `shots` are the places of cuts, after the first."""
    frames = [UsableFrame(n, sum(n >= s for s in shots) - 1, speed) for n in range(count)]
    return ClipScan("clip", (48, 64), tuple(frames), count, {}, f"hash{count}")


def test_blank_and_duplicated_frames_and_cuts_are_found(tmp_path):
    one, two = moving_picture(10, (48, 64)), moving_picture(10, (48, 64), seed=1)
    blank = np.full_like(one[0], 40)
    frames = [*one[:5], one[4], one[4], *one[5:], blank, *two]
    found = scan_clip(str(write_footage(tmp_path / "clip", frames)))
    assert (found.num_frames, found.size, found.num_files) == (23, (48, 64), 23)
    assert found.skipped == {"duplicated": 2, "blank": 1, "cuts": 1}
    assert [f.number for f in found.frames] == [*range(5), *range(7, 12), *range(13, 23)]
    assert [f.shot for f in found.frames] == [0] * 10 + [1] * 10
    speeds = [f.speed for f in found.frames[1:10]]
    np.testing.assert_allclose(speeds, 1.0, atol=0.3)


def test_a_clip_that_motion_never_explains_is_not_full_of_cuts(tmp_path):
    generator = np.random.default_rng(0)
    noise = [
        cv2.resize(generator.integers(0, 256, (12, 16, 3), np.uint8), (64, 48)) for _ in range(12)
    ]
    assert scan_clip(str(write_footage(tmp_path / "clip", noise))).skipped == {"cuts": 0}


@pytest.mark.parametrize("count", [16, 30, 79, 80, 81, 400])
def test_parts_of_the_time_line_do_not_touch(count):
    parts = time_parts(count, 0.2)
    assert len(parts) == count
    held = sum(part.startswith("held") for part in parts)
    assert 0.15 * count <= held <= max(0.25 * count, 5)
    for before, after in pairwise(parts):
        assert before == after or "" in (before, after)


def test_no_frame_of_a_held_back_pair_is_trained_on():
    footage = choose_pairs([scan(70), scan(60, (0, 30))], SETTINGS)
    sides = [
        {(p.clip, n) for p in pairs for n in range(p.first, p.second + 1)}
        for pairs in (footage.training, footage.held_back)
    ]
    assert min(map(len, sides)) > 10
    assert not sides[0] & sides[1]
    for pair in (*footage.training, *footage.held_back):
        assert pair.second - pair.first in SETTINGS.distances
        assert not (pair.clip == 1 and pair.first < 30 <= pair.second)  # the cut
    assert {p.second - p.first for p in footage.training} == {1, 2, 4}


def test_chosen_pairs_cover_the_range_of_speeds():
    pairs = [FootagePair(0, n, n + 1, 0.7) for n in range(1000)]
    pairs += [FootagePair(1, n, n + 1, 20.0) for n in range(5)]
    pairs += [FootagePair(2, n, n + 1, 3.0) for n in range(100)]
    chosen = spread(pairs, 45)
    counts = [sum(p.clip == clip for p in chosen) for clip in range(3)]
    assert counts == [20, 5, 20]
    slow = [p.first for p in chosen if p.clip == 0]
    assert slow[0] < 50
    assert slow[-1] > 950  # evenly over time
    assert spread(pairs, 5000) == sorted(pairs)
    speeds = np.array([0, 0.9, 1, 3.9, 4, 127, 1e9])
    assert speed_bins(speeds).tolist() == [0, 0, 1, 2, 3, 7, 8]


def test_frames_are_stored_once_and_not_larger_than_the_network_sees_them(tmp_path):
    clip = write_footage(tmp_path / "clip", moving_picture(20))
    footage = choose_pairs([scan_clip(str(clip))], AdaptConfig(pairs=4, held_back_pairs=2))
    store_frames(footage, tmp_path / "frames", 0)
    stored = sorted((tmp_path / "frames").iterdir())
    first = stored[0]
    number = int(first.stem[-6:])
    np.testing.assert_array_equal(
        cv2.imread(str(first)), cv2.imread(str(clip / f"frame_{number:03}.png"))
    )
    first.unlink()
    times = {path: path.stat().st_mtime_ns for path in stored[1:]}
    store_frames(footage, tmp_path / "frames", 0)
    assert first.is_file()
    assert {path: path.stat().st_mtime_ns for path in stored[1:]} == times
    assert stored_size((1080, 1920), 655_360) == (607, 1079)
    assert stored_size((480, 640), 655_360) == (480, 640)


def test_the_disk_limits_the_pairs():
    clips = [scan(200)]
    some = choose_pairs(clips, AdaptConfig(disk=0.001))
    assert len(some.training) < len(choose_pairs(clips, SETTINGS).training)
    large = [ClipScan("clip", (2000, 3000), scan(200).frames, 200, {}, "")]
    with pytest.raises(InputError, match=r"room for 0 pairs; allow more with `changes=\['adapt"):
        choose_pairs(large, AdaptConfig(disk=0.001))


def test_unusable_footage_is_refused_in_one_sentence(tmp_path):
    frames = moving_picture(20)
    cases = {
        "short": (frames[:8], "too short: it has 8 frames, and at least 16"),
        "still": ([frames[0]] * 20, "still: 1 of its 20 frames differ"),
        "blank": ([np.zeros_like(frames[0])] * 20, "too short: it has 20 frames, 20 of them blank"),
    }
    for name, (some, message) in cases.items():
        clip = scan_clip(str(write_footage(tmp_path / name, some)))
        with pytest.raises(InputError, match=message):
            choose_pairs([clip], SETTINGS)
    with pytest.raises(InputError, match="too few pairs without a cut"):
        choose_pairs([scan(20, range(20))], SETTINGS)
    changing = write_footage(tmp_path / "changing", [*frames[:5], frames[0][:16]])
    with pytest.raises(InputError, match="frame 5: is 48x16, but the frames before were 48x32"):
        scan_clip(str(changing))
    broken = write_footage(tmp_path / "broken", frames)
    (broken / "frame_003.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"broken: frame 3: .* is not an image"):
        scan_clip(str(broken))


def test_folders_hold_clips_and_a_camera_is_none(tmp_path):
    frames = moving_picture(4)
    write_footage(tmp_path / "more/shots", frames)
    video = write_video(tmp_path / "more/a.mkv", frames)
    found = list_clips([str(video), str(tmp_path / "more")])
    assert found == [str(video), str(tmp_path / "more/shots")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no video and no folder with frames"):
        list_clips([str(tmp_path / "empty")])
    with pytest.raises(InputError, match="a camera cannot be adapted to"):
        list_clips(["camera:0"])
    assert scan_clip(str(video)).sha256 == scan_clip(str(video)).sha256
