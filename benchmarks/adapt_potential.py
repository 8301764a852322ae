"""How far the error of a domain could fall if the network imitated its teacher perfectly.

    python benchmarks/adapt_potential.py PHOTOS -o potential.json

Frames of each domain's clips are estimated at quality "best", or as `dicl-flow adapt` does, at
"normal" where that agrees better in both directions. On the pixels that are kept, the error is
compared with that of "normal", which would imitate it; the rest cannot be learned from it. PHOTOS
is a folder of photographs, or procedural.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import dicl_flow  # isort: skip (first: torch reads what it sets)

import torch

from dicl_flow.adaptation.acceptance import pair_errors
from dicl_flow.adaptation.settings import AdaptConfig
from dicl_flow.adaptation.teacher import kept_pixels
from dicl_flow.config import RenderConfig
from dicl_flow.estimation.estimator import BothWays
from dicl_flow.estimation.inputs import image_batch
from dicl_flow.files import to_uint8, write_files
from dicl_flow.lab.speed import describe_machine
from dicl_flow.render import DOMAINS, Clip, domain_clip, load_textures

SEED = 70_000  # of the first clip
QUALITIES = ("best", "normal")
AGREEMENTS = {
    "0.002, 0.1 px": (0.002, 0.1),
    "0.005, 0.3 px": (0.005, 0.3),
    "0.01, 0.5 px": (0.01, 0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of photographs, or procedural")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-w", "--weights")
    parser.add_argument("--clips", type=int, default=4, help="of each domain, two pairs of each")
    parser.add_argument("--size", default="512x384")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    teachers = [
        BothWays(dicl_flow.load(options.weights, device=options.device, quality=quality))
        for quality in QUALITIES
    ]
    device = teachers[0].estimator.device
    photos = None if options.photos == "procedural" else Path(options.photos)
    textures, found = load_textures(photos, device, 0, limit=200), {}
    for domain in DOMAINS:
        clips = (
            domain_clip(domain, (height, width), textures, 3, device, SEED + n, RenderConfig())
            for n in range(options.clips)
        )
        pairs = [judge(clip, teachers, second) for clip in clips for second in (1, 2)]
        found[domain] = averaged(pairs)
        print(domain, json.dumps(found[domain]), flush=True)
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": describe_machine(device)["device"]}
    contents = {**about, "agreements": AGREEMENTS, "domains": found}
    write_files({options.output: (json.dumps(contents, indent=1) + "\n").encode()})


@torch.no_grad()
def judge(clip: Clip, teachers: list[BothWays], second: int) -> dict:
    """The errors of both qualities, and for each agreement what is kept and what it is worth."""
    frames = clip.frames().permute(0, 2, 3, 1).cpu().numpy()
    arrays = [to_uint8(frames[number]) for number in (0, second)]
    images = [image_batch(array, teachers[0].estimator.device)[0] for array in arrays]
    true = clip.flow(0, second)
    valid, both = clip.valid(true), [teacher(*arrays) for teacher in teachers]
    errors = [(forward.flow[0] - true).norm(dim=0) for forward, _ in both]
    best, student = errors
    apart = [found.disagreement for found in pair_errors(*images, both)]
    chosen = apart.index(min(apart))
    result = {"best": float(best[valid].mean()), "normal": float(student[valid].mean())}
    for name, agreement in AGREEMENTS.items():
        settings = AdaptConfig(agreement=agreement)
        kept = [kept_pixels(*ways, *images, settings)[0] & valid for ways in both]
        share = kept[chosen].sum() / valid.sum()
        gain = (student - errors[chosen])[kept[chosen]].sum() / valid.sum()
        only_best = (student - best)[kept[0]].sum() / valid.sum()
        result[name] = [float(share), float(gain), float(only_best), float(chosen == 0)]
    return result


def averaged(pairs: list[dict]) -> dict:
    """Means over pairs; gains relative to the error of quality "normal"."""
    epe = {quality: mean(pair[quality] for pair in pairs) for quality in QUALITIES}
    rows = {}
    for name in AGREEMENTS:
        share, gain, only_best, chosen = map(
            mean, zip(*(pair[name] for pair in pairs), strict=True)
        )
        rows[name] = {
            "kept": share,
            "gain": gain / epe["normal"],
            "gain_of_best_alone": only_best / epe["normal"],
            "pairs_of_best": chosen,
        }
    return {**epe, **rows}


if __name__ == "__main__":
    main()
