"""A video run, killed before each of its last changes of files in turn, and run again.

python video_kills_child.py FOLDER COUNT
"""

import signal
import sys
from functools import partial
from pathlib import Path

import fake_trees
import torch
from clips import KnownMotion, read_video, write_images

from campaigns.forked import Moment, run_forked
from dicl_flow.video import Checkpoint, Outputs, PictureVideo, Selection, open_source, run

FLOWS = 3


def estimate(source, folder):
    outputs = Outputs((folder / "a.npy", folder / "b.mkv"), stats=folder / "c.csv")
    with Checkpoint(folder / "a.npy", {}) as checkpoint:
        writers = outputs.writers(checkpoint.folder, 10)
        run(source, Selection(), KnownMotion(backward=False), writers, checkpoint)


def contents(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["a.npy", "b.mkv", "c.csv"], names
    pictures = [picture.tobytes() for picture, _ in read_video(folder / "b.mkv")]
    return (folder / "a.npy").read_bytes(), pictures, (folder / "c.csv").read_text()


def main(place, count):
    torch.set_num_threads(1)
    PictureVideo.piece = 2
    work = Path(place)
    frames, _ = fake_trees.moving_frames(FLOWS + 1, (16, 24))
    source = open_source(str(write_images(work / "frames", frames)))
    alone = work / "alone"
    alone.mkdir()
    last = run_forked(partial(estimate, source, alone), alone).operations
    assert last > 40
    for operation in range(max(1, last - int(count)), last + 1):
        folder = work / str(operation)
        folder.mkdir()
        call = partial(estimate, source, folder)
        assert run_forked(call, folder, Moment(operation=operation)).code == -signal.SIGKILL
        if (folder / "a.npy").exists():
            assert (folder / "a.npy").read_bytes() == contents(alone)[0]
        ended = run_forked(call, folder)
        assert ended.code == 0, (operation, ended.errors)
        assert contents(folder) == contents(alone), operation


if __name__ == "__main__":
    main(*sys.argv[1:])
