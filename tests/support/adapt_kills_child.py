"""An adaptation that is killed again and again before random changes of files.

python adapt_kills_child.py FOLDER KILLS
"""

import random
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import torch
from small_adaptation import CHANGES, accept_everything, moving_picture, write_footage
from small_study import use_small_scenes

from campaigns.forked import Moment, run_forked
from dicl_flow import adapt


def run(clip, weights, folder):
    changes = [*CHANGES, "adapt.new_frames=0.4", "loss.photometric=[0.1,0.01]"]
    ended = adapt(clip, folder / "a.safetensors", weights, steps=3, changes=changes, device="cpu")
    assert ended.accepted


def contents(folder):
    names = ("a.safetensors", "a.adapt/report.json", "a.adapt/report.md", "a.adapt/pairs.png")
    left = {path.name for path in (folder / "a.adapt").iterdir()}
    pictures = {"kept.png", "pairs.png", "training.png"}
    assert left == {"report.json", "report.md", "student", *pictures}, left
    return [(folder / name).read_bytes() for name in names]


def main(place, kills):
    torch.set_num_threads(1)
    use_small_scenes()
    accept_everything()
    work, dice = Path(place), random.Random(1)
    clip = write_footage(work / "clip", moving_picture(16))
    weights = Path(place) / "start.safetensors"
    alone = work / "alone"
    alone.mkdir()
    last = run_forked(partial(run, clip, weights, alone), alone)
    assert last.code == 0, last.errors
    killed = work / "killed"
    killed.mkdir()
    call, done = partial(run, clip, weights, killed), 0
    while done < int(kills):
        ended = run_forked(call, killed, Moment(operation=dice.randint(1, last.operations)))
        if ended.code == 0:  # it was resumed so late that there was no such operation
            shutil.rmtree(killed)
            killed.mkdir()
            continue
        assert ended.code == -signal.SIGKILL, ended.errors
        done += 1
    ended = run_forked(call, killed)
    assert ended.code == 0, ended.errors
    assert contents(killed) == contents(alone)


if __name__ == "__main__":
    main(*sys.argv[1:])
