"""The motion in solid scenes of a recipe, and the time that a CPU takes to render them.

    python benchmarks/solid_scenes.py [RECIPE] -n 24        # quantiles of the motion in px
    python benchmarks/solid_scenes.py --time                # seconds for a pair of 640x384

Motion, for frames of 640x384 and 1280x384: `-n` worlds of each kind of place, seen in frames of an
eighth of the size; what is behind the camera in frame 2 is not counted. Time: of six pairs of each
kind with the default settings, camera effects included.
"""

import argparse
from dataclasses import replace
from statistics import mean
from time import perf_counter

import torch

from dicl_flow.config import PLACES, RenderConfig
from dicl_flow.render import Renderer, load_textures
from dicl_flow.render.shapes import shape_bank
from dicl_flow.render.solid.casting import View
from dicl_flow.render.solid.things import Draws
from dicl_flow.render.solid.world import Textures, draw_world, lay_out
from dicl_flow.training import read_recipe

SHARES = (0.5, 0.75, 0.9, 0.95, 0.99)
SHRINK = 8
BEHIND = 1e4  # px


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="solid")
    parser.add_argument("-n", "--worlds", type=int, default=24)
    parser.add_argument("--time", action="store_true")
    arguments = parser.parse_args()
    if arguments.time:
        time_kinds()
        return
    config = replace(read_recipe(arguments.recipe, []).render, num_shapes=32, shape_side=48)
    shapes = shape_bank(torch.device("cpu"), 0, config.num_shapes, config.shape_side)
    for width in (640, 1280):
        found = []
        for kind in PLACES:
            lengths = [
                motion(
                    draw_world(config, Draws(f"{kind}{n}"), (384, width), Textures(1, 1, 0), kind),
                    width,
                    shapes,
                )
                for n in range(arguments.worlds)
            ]
            found.append(torch.cat(lengths))
            print_row(f"{width}x384 {kind}", found[-1])
        print_row(f"{width}x384 all", torch.cat(found))


def motion(world, width, shapes):
    """The lengths of the flow of a world in px of the full frame."""
    size = (384 // SHRINK, width // SHRINK)
    world.focal /= SHRINK
    length = SHRINK * View(lay_out([world], (0.0, 1.0), size), shapes, size).flow(0, 1).norm(dim=1)
    return length[length < BEHIND]


def print_row(name, lengths):
    values = lengths.quantile(torch.tensor(SHARES)).tolist()
    print(f"{name:20}", " ".join(f"{value:7.1f}" for value in values), flush=True)


def time_kinds():
    """Print the mean time of each kind, and of all."""
    textures, everything = load_textures(None), []
    for kind in PLACES:
        renderer = Renderer(RenderConfig().only(kind), (384, 640), textures)
        renderer.render(1, 0)  # the first one makes outlines and mip maps
        seconds = []
        for number in range(1, 7):
            start = perf_counter()
            renderer.render(1, number)
            seconds.append(perf_counter() - start)
        everything += seconds
        print(f"{kind:10} {mean(seconds):.2f} s", flush=True)
    print(f"{'all':10} {mean(everything):.2f} s, at most {max(everything):.2f} s")


if __name__ == "__main__":
    main()
