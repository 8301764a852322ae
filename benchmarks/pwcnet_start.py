"""Does PWC-Net learn to match? The EPE of its levels during training, for several initial values.

python benchmarks/pwcnet_start.py PHOTOS                            # the default start
python benchmarks/pwcnet_start.py PHOTOS --spread 1
python benchmarks/pwcnet_start.py PHOTOS --without scaling damping  # Kaiming's rule alone

Uses the recipe of `dicl-flow ablate hosts` at a constant learning rate; without a CUDA GPU, few and
small pairs.
"""

import argparse
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from dicl_flow.models import pwcnet
from dicl_flow.ops import normalize, upsample_flow
from dicl_flow.render import load_textures
from dicl_flow.training import Processes, SceneSource, Trainer, read_recipe

STEPS = {"scaling": "_scale_features", "damping": "_scale_heads"}  # of the initial values
SMALL = ["backend=plain", "batch=8", "render.motion=0.3"]
SMALL += ["augment.crop=[128,128]", "model.multiple=128"]


@torch.no_grad()
def spreads(trainer: Trainer) -> list[float]:
    """The standard deviation of each level's features over an image."""
    pyramid = trainer.model.features(normalize(trainer.batch.image1))
    return [features.float().std((2, 3)).mean().item() for features in pyramid]


def errors(trainer: Trainer) -> list[float]:
    """The EPE of zero flow, and of each level."""
    truth = trainer.batch.flow
    size = truth.shape[-2:]
    flows = [upsample_flow(level.refined.detach().float(), size) for level in trainer.levels]
    return [(f - truth).norm(dim=1).mean().item() for f in (torch.zeros_like(truth), *flows)]


def main() -> None:
    """Print the mean EPE of each fifth of the steps, and how far the features vary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--without", nargs="*", choices=STEPS, default=())
    parser.add_argument("--spread", type=float, default=pwcnet.FEATURE_DEVIATION)
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--steps", type=int, default=250)
    arguments = parser.parse_args()
    pwcnet.FEATURE_DEVIATION = arguments.spread
    for step in arguments.without:
        patch.object(pwcnet, STEPS[step], lambda module: None).start()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = ["model.host=pwcnet", "schedule.kind=step", "schedule.warmup=100"]
    recipe += [f"optimizer.learning_rate={arguments.rate}", *SMALL * (device.type == "cpu")]
    config, processes = read_recipe("ablation", recipe), Processes(device)
    textures = load_textures(arguments.photos, device, size=(256, 256), limit=200)
    batches = SceneSource(config, textures).batches(config.batch, 0, processes)
    trainer, seen, report = Trainer(config, processes), [], arguments.steps // 5
    for step in range(1, arguments.steps + 1):
        trainer.train_step(batches, 0.0)
        seen.append(errors(trainer))
        if step % report == 0:
            still, *levels = np.mean(seen[-report:], 0)
            text = " ".join(f"{error:.2f}" for error in levels)
            spread = " ".join(f"{value:.3f}" for value in spreads(trainer))
            print(f"step {step}: EPE of zero flow {still:.2f}, of strides 64 to 4: {text}")
            print(f"          features vary over an image by {spread}", flush=True)


if __name__ == "__main__":
    main()
