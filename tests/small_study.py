"""An ablation that a test can afford."""

from functools import partial

from dicl_flow.lab import ablation, study_scenes
from dicl_flow.render import load_textures

RECIPE = """
name = "tiny"
steps = 1
batch = 2
save_every = 2
log_every = 1
picture_every = 0
data = [{ name = "rendered" }]
[model]
levels = [
    { stride = 8, radius = 1, context = [[8, 1]] },
    { stride = 4, radius = 1, context = [[8, 1]] },
]
[augment]
crop = [16, 32]
[render]
num_shapes = 8
[loss]
refined = [0.5, 1.0]
matched = [0.4, 0.8]
[optimizer]
average = 0.9
clip = 1.0
"""


def use_small_textures(set_attribute=setattr) -> None:
    """54 textures of full size take seconds."""
    for module in (ablation, study_scenes):
        set_attribute(module, "load_textures", partial(load_textures, size=(48, 64)))
