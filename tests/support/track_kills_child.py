"""A run of the tracker, killed before changes of files, every few of them, and run again.

python track_kills_child.py FOLDER STEP
"""

import sys
from functools import partial
from pathlib import Path

import fake_trees
import numpy as np
import torch
from clips import read_video, write_images
from followers import KnownTracker
from killed_runs import check_kills

from dicl_flow.tracking import progress
from dicl_flow.tracking.outputs import OverlayVideo
from dicl_flow.tracking.run import TrackOutputs, run
from dicl_flow.tracking.task import look_at, point_task
from dicl_flow.video import Checkpoint, Selection, open_source


def follow(task, folder):
    outputs = TrackOutputs([folder / "a.npz"], video=lambda p: OverlayVideo(folder / "b.mkv", p, 9))
    with Checkpoint(folder / "a.npz", {}) as checkpoint:
        run(task, KnownTracker, outputs, checkpoint)


def contents(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["a.npz", "b.mkv"], names
    pictures = [picture.tobytes() for picture, _ in read_video(folder / "b.mkv")]
    return (folder / "a.npz").read_bytes(), pictures


def main(place, step):
    torch.set_num_threads(1)
    progress.EVERY, progress._SAVING, OverlayVideo.piece = 0.0, 1e9, 2
    work = Path(place)
    frames, _ = fake_trees.moving_frames(4, (16, 24))
    source = open_source(str(write_images(work / "frames", frames)))
    task = point_task(look_at(source, Selection()), np.float32([[2, 8, 8], [0, 5, 5]]))
    check_kills(work, partial(follow, task), contents, lambda count: range(count, 0, -int(step)))


if __name__ == "__main__":
    main(*sys.argv[1:])
