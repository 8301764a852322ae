"""Adapts weights to real clips without truth, each alone, and compares both on held-back frames.

    python -m benchmarks.adapt_clips CLIP… --photos PHOTOS -o build/clips --steps 400
    python -m benchmarks.adapt_clips CLIP… -o build/tiny --tiny   # on a CPU: nothing is learned

`clips.json` in the output folder has, for each clip, the warping error, the disagreement of both
directions and the error on rendered scenes, before and after. It is written after each clip, and
the same call goes on; it is all that another machine needs to continue. `NAME.webp` shows the
worst pairs before and after. With `--stop-after`, no clip is begun after so many minutes.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import dicl_flow  # isort: skip (first: torch reads what it sets)

from benchmarks.adapt_domains import LIGHT, TINY, TINY_CHANGES, write_tiny_network
from benchmarks.page_pictures import write
from dicl_flow.adaptation.report import PAIRS
from dicl_flow.errors import InputError
from dicl_flow.estimation.compute import choose_device
from dicl_flow.files import read_image, write_files
from dicl_flow.lab.speed import describe_machine

NUMBERS = ("census", "disagreement", "scenes", "speed")


def main() -> None:
    options, start = parse(), perf_counter()
    path = options.output / "clips.json"
    results = read_results(path, options)
    if options.tiny:
        write_tiny_network(options.output)
        options.weights = options.output / TINY
    for clip in options.clips:
        late = options.stop_after and perf_counter() - start > 60 * options.stop_after
        if clip.stem in results["clips"] or late:
            continue
        results["clips"][clip.stem] = measure(clip, options)
        write_files({path: (json.dumps(results, indent=1) + "\n").encode()})
        print(row(clip.stem, results["clips"][clip.stem]), flush=True)
    print(table(results["clips"]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clips", nargs="+", type=Path, help="videos, or folders of frames")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-w", "--weights", default="rendered")
    parser.add_argument("--photos", type=Path, help="textures of the rendered scenes")
    parser.add_argument("--steps", type=int, default=400, help="of training, per clip")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--stop-after", type=float, metavar="MINUTES")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: nothing is learned")
    options = parser.parse_args()
    if len({clip.stem for clip in options.clips}) < len(options.clips):
        raise InputError("two clips have the same name")
    if options.tiny:
        options.steps = 2
    return options


def read_results(path: Path, options: argparse.Namespace) -> dict:
    """Go on with what is there already, of the same settings."""
    machine = describe_machine(choose_device(options.device))["device"]
    setting = {"weights": str(options.weights), "steps": options.steps, "set": options.set}
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine, "options": setting}
    results = json.loads(path.read_text()) if path.is_file() else {**about, "clips": {}}
    if results["options"] != setting:
        raise InputError(f"{path} has other settings: give another output folder")
    return results


def measure(clip: Path, options: argparse.Namespace) -> dict:
    """Adapt to a clip; what it judges by counts, whether it accepts or not."""
    start = perf_counter()
    ended = dicl_flow.adapt(
        clip,
        options.output / f"runs/{clip.stem}.safetensors",
        options.weights,
        photos=options.photos,
        changes=[*(TINY_CHANGES if options.tiny else LIGHT), *options.set],
        device=options.device,
        steps=options.steps,
    )
    if "pairs" not in ended.numbers:  # there was nothing to learn from
        return {"accepted": False, "reasons": list(ended.reasons)}
    write(options.output / f"{clip.stem}.webp", read_image(ended.report / PAIRS))
    return {
        **{name: ended.numbers["verdict"][name] for name in NUMBERS},
        "pairs": len(ended.numbers["pairs"]),
        "kept": ended.numbers["teacher"]["kept"],
        "share": ended.numbers["share"],
        "accepted": ended.accepted,
        "reasons": list(ended.reasons),
        "warnings": list(ended.warnings),
        "seconds": round(perf_counter() - start, 1),
    }


def table(clips: dict) -> str:
    """A row per clip."""
    lines = [
        "| clip | pairs | warping error | change | 90 % of the changes lie in | disagreement, px "
        "| rendered scenes | accepted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(row(name, found) for name, found in clips.items())])


def row(name: str, found: dict) -> str:
    accepted = "yes" if found["accepted"] else "no"
    if "pairs" not in found:
        return f"| {name} | 0 | | | | | | {accepted} |"
    warping, apart, scenes = (found[key] for key in NUMBERS[:3])
    low, high = (warping[key] / warping["before"] for key in ("low", "high"))
    return (
        f"| {name} | {found['pairs']} | {warping['before']:.4f} → {warping['after']:.4f} | "
        f"{warping['relative']:+.1%} | {low:+.1%} to {high:+.1%} | {apart['before']:.3f} → "
        f"{apart['after']:.3f} | {scenes['relative']:+.1%} | {accepted} |"
    )


if __name__ == "__main__":
    main()
