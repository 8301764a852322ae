"""How much of what is hard in a domain is in the look that rendered scenes get from its footage.

    python benchmarks/adapt_looks.py PHOTOS -o looks.json

The same scenes are estimated three times: plain, in the domain, and plain with the look that was
measured on another clip of the domain, as `dicl-flow adapt` measures it. The mean EPE counts pixels
that are seen in both frames. PHOTOS is a folder of photographs, or procedural.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import dicl_flow  # isort: skip (first: torch reads what it sets)

import torch
from torch import Tensor

from dicl_flow.adaptation.look import give_look, measure_look
from dicl_flow.adaptation.settings import AdaptConfig
from dicl_flow.adaptation.teacher import kept_pixels
from dicl_flow.estimation.estimator import BothWays
from dicl_flow.estimation.inputs import image_batch
from dicl_flow.files import Array, to_uint8, write_files
from dicl_flow.lab.speed import describe_machine
from dicl_flow.render import load_textures
from dicl_flow.render.domains import LOOKS, DomainClip

SEED = 70_000  # of the first clip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of photographs, or procedural")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-w", "--weights")
    parser.add_argument("--clips", type=int, default=4, help="of each domain, one pair of each")
    parser.add_argument("--size", default="512x384")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    network = BothWays(dicl_flow.load(options.weights, device=options.device))
    device = network.estimator.device
    photos = None if options.photos == "procedural" else Path(options.photos)
    textures, found = load_textures(photos, device, 0, limit=200), {}
    for domain in LOOKS:
        clips = [
            DomainClip(domain, (height, width), textures, 2, device, SEED + number)
            for number in range(options.clips)
        ]
        found[domain] = judge(clips, network)
        print(domain, json.dumps(found[domain]), flush=True)
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": describe_machine(device)["device"]}
    contents = {**about, "clips": options.clips, "domains": found}
    write_files({options.output: (json.dumps(contents, indent=1) + "\n").encode()})


@torch.no_grad()
def judge(clips: Sequence[DomainClip], network: BothWays) -> dict[str, float]:
    """The errors of all clips; each gets the look of the next one."""
    scenes, looks = [], []
    errors: dict[str, list[float]] = {"plain": [], "domain": [], "looked": []}
    for clip in clips:
        shot = clip.shot()
        arrays = pictures(clip.domain.look(shot).clamp(0, 1))
        ways = network(*arrays)
        images = [image_batch(array, network.estimator.device)[0] for array in arrays]
        kept = kept_pixels(*ways, *images, AdaptConfig())
        looks.append(measure_look(*images, ways[0].flow, kept))
        errors["domain"].append(error(clip, ways[0].flow[0]))
        scenes.append(shot.color)
    for number, (clip, plain) in enumerate(zip(clips, scenes, strict=True)):
        look, dice = looks[(number + 1) % len(clips)], torch.Generator(plain.device)
        looked = give_look(plain[:, None], look[None], dice.manual_seed(number))[:, 0]
        for kind, frames in (("plain", plain), ("looked", looked)):
            flow = network.estimator(*pictures(frames)).flow
            errors[kind].append(error(clip, torch.from_numpy(flow).permute(2, 0, 1)))
    return {kind: mean(values) for kind, values in errors.items()}


def error(clip: DomainClip, flow: Tensor) -> float:
    """Of a flow (2, H, W) from the first frame, where the second shows the pixel."""
    true = clip.flow(0, 1)
    seen = clip.valid(true) & ~clip.occluded(0, 1)
    return float((flow.to(true) - true).norm(dim=0)[seen].mean())


def pictures(frames: Tensor) -> list[Array]:
    return [to_uint8(frame) for frame in frames.permute(0, 2, 3, 1).cpu().numpy()]


if __name__ == "__main__":
    main()
