"""An ablation that a test can afford."""

from dicl_flow.render import load_textures, renderer
from dicl_flow.render.shapes import shape_bank

RECIPE = """
name = "tiny"
steps = 1
batch = 2
save_every = 2
log_every = 1
picture_every = 0
data = [{ name = "rendered" }]
[model]
levels = [{ stride = 8, radius = 1, context = [[8, 1]] }]
[augment]
crop = [16, 32]
[render]
num_shapes = 8
[loss]
refined = [1.0]
matched = [0.8]
[optimizer]
average = 0.9
clip = 1.0
"""


def use_small_scenes(set_attribute=setattr) -> None:
    """Procedural textures of full size take a second or two, each time; so do all outlines."""
    *others, _ = load_textures.__defaults__
    set_attribute(load_textures, "__defaults__", (*others, (48, 64)))
    set_attribute(renderer, "shape_bank", _few_outlines)


def _few_outlines(device, seed, count, side):
    few = shape_bank(device, seed, min(count, 16), min(side, 48))
    return few.repeat(-(-count // len(few)), 1, 1, 1)[:count]
