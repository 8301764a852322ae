"""A video run that is killed before any change of a file is resumed, and loses nothing."""

from fractions import Fraction

import fake_trees
import pytest
from children import SUPPORT, run_forked_child
from clips import KnownMotion, write_images

from dicl_flow.video import PictureVideo, Selection, estimate_flows, open_source

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    "last",
    [pytest.param(7, marks=pytest.mark.heavy), pytest.param(1000, marks=pytest.mark.slow)],
)
def test_killed_before_the_last_changes_of_files_and_before_all(tmp_path, last):
    child = run_forked_child(SUPPORT / "video_kills_child.py", tmp_path, last)
    assert child.returncode == 0, child.stderr


class Growing(KnownMotion):
    """Motion that grows with each flow, and the colours of a video with it."""

    def match(self, before, after):
        self.motion = (self.motion[0] * 1.1, 0.0)
        return super().match(before, after)


@pytest.mark.parametrize("written", [1, 2])
def test_the_scale_of_colours_is_saved_as_of_the_last_picture_written(tmp_path, written):
    """Not of the last one drawn: drawing is ahead of writing."""
    frames, _ = fake_trees.moving_frames(4, (16, 24))
    source = open_source(str(write_images(tmp_path / "frames", frames)))
    video = PictureVideo(tmp_path / "b.mkv", tmp_path, Fraction(10), ("wheel",))
    flows = list(estimate_flows(Selection().frames(source), Growing(backward=False), None))
    drawn = [(flow, video.prepare(flow)) for flow in flows]
    for flow, picture in drawn[:written]:
        video.write(flow, picture())
        video.done += 1
    video.commit()
    longest = float(flows[written - 1].flow.norm(dim=0).max())
    assert video.memory["scale"] == pytest.approx(longest)
