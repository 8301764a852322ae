"""A video run, killed before each of its last changes of files in turn, and run again.

python video_kills_child.py FOLDER COUNT
"""

import sys
from functools import partial
from pathlib import Path

import fake_trees
import torch
from clips import KnownMotion, read_video, write_images
from killed_runs import check_kills

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
    write = partial(estimate, source)
    check_kills(work, write, contents, lambda c: range(max(1, c - int(count)), c + 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
