"""Does PWC-Net begin to match? Its EPE while it trains, for any gains of its start.

python benchmarks/pwcnet_start.py PHOTOS                        # shifted photographs
python benchmarks/pwcnet_start.py PHOTOS --features 1 --flow 1  # Kaiming's rule alone
python benchmarks/pwcnet_start.py PHOTOS --rendered --steps 400
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from dicl_flow.data import FlowBatch
from dicl_flow.inputs import normalize
from dicl_flow.models import pwcnet
from dicl_flow.ops import upsample_flow
from dicl_flow.render import TextureAtlas, load_textures
from dicl_flow.training import Processes, SceneSource, Trainer, read_recipe

BATCH, SIDE, SHIFT, REPORT = 8, 128, 8, 40
RECIPE = f"""backend=plain batch={BATCH} model.host=pwcnet augment.crop=[{SIDE},{SIDE}]
render.motion=0.3 optimizer.learning_rate=2e-4 schedule.kind=step schedule.warmup=75""".split()


def shifted(textures: TextureAtlas) -> Iterator[FlowBatch]:
    """Windows of textures, the second one moved by up to SHIFT pixels either way."""
    dice, images = np.random.default_rng(0), textures.images[0]  # (3, P, H, W)
    while True:
        windows, flows = [], []
        for _ in range(BATCH):
            x, y = (dice.integers(SHIFT, side - SIDE - SHIFT) for side in textures.size[::-1])
            u, v = dice.integers(-SHIFT, SHIFT + 1, 2)
            picture = images[:, dice.integers(len(textures))]
            corners = ((x, y), (x - u, y - v))
            windows.append(
                torch.stack([picture[:, b : b + SIDE, a : a + SIDE] for a, b in corners])
            )
            flows.append(torch.tensor([[[u]], [[v]]]).float().expand(2, SIDE, SIDE))
        valid = torch.ones(BATCH, SIDE, SIDE, dtype=torch.bool)
        yield FlowBatch(*torch.stack(windows, 1), torch.stack(flows), valid)


@torch.no_grad()
def spreads(trainer: Trainer) -> list[float]:
    """The standard deviation of each level's features over an image."""
    pyramid = trainer.model.features(normalize(trainer.batch.image1))
    return [features.std((2, 3)).mean().item() for features in pyramid]


def main() -> None:
    """Print the mean EPE of every REPORT steps, and what became of the features."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--features", type=float, default=pwcnet.FEATURE_GAIN)
    parser.add_argument("--flow", type=float, default=pwcnet.FLOW_GAIN)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rendered", action="store_true", help="scenes, not shifts")
    arguments = parser.parse_args()
    pwcnet.FEATURE_GAIN, pwcnet.FLOW_GAIN = arguments.features, arguments.flow
    config, processes = read_recipe("ablation", RECIPE), Processes(torch.device("cpu"))
    textures = load_textures(arguments.photos, size=(256, 256), limit=200)
    source = SceneSource(config, textures)
    batches = source.batches(BATCH, 0, processes) if arguments.rendered else shifted(textures)
    trainer, errors = Trainer(config, processes), []
    for step in range(1, arguments.steps + 1):
        trainer.train_step(batches, 0.0)
        truth = trainer.batch.flow
        flows = [upsample_flow(level.refined.detach(), (SIDE, SIDE)) for level in trainer.levels]
        errors.append([(f - truth).norm(dim=1).mean() for f in (torch.zeros_like(truth), *flows)])
        if step % REPORT == 0:
            still, *levels = np.mean(errors[-REPORT:], 0)
            text = " ".join(f"{error:.2f}" for error in levels)
            spread = " ".join(f"{value:.4f}" for value in spreads(trainer))
            print(f"step {step}: EPE of no motion {still:.2f}, of strides 64 to 4: {text}")
            print(f"          features vary over an image by {spread}", flush=True)


if __name__ == "__main__":
    main()
