"""The rooms of the package: what each is for, and which others it may import.

A room is an entry of src/dicl_flow that holds Python, a folder or a file; an arrow is one room
importing another, anywhere in its files. `python tests/support/rooms.py` rewrites the tree of
docs/architecture.md from this list; tests/test_package.py compares both with the code.
"""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
SOURCE = Path(__file__).parents[2] / "src/dicl_flow"


class Room(NamedTuple):
    purpose: str
    imports: set[str]


def room(purpose, imports=""):
    return Room(purpose, set(imports.split()))


# Each imports only rooms below it: there is no circle.
ROOMS = {
    "__main__": room("python -m dicl_flow", "cli"),
    "__init__": room(
        "the public names, imported when first used",
        "adaptation tracking evaluation estimation pictures models files config lazy environ "
        "errors _version",
    ),
    "cli": room(
        "a class per command: parses and prints",
        "web bulk lab adaptation tracking video evaluation training estimation render weights "
        "models data pictures files config environ fence errors _version",
    ),
    "web": room(
        "the HTTP server and the explorer",
        "lab tracking video estimation files errors",
    ),
    "bulk": room(
        "millions of pairs: manifests, segments, engines",
        "video estimation pictures files errors",
    ),
    "lab": room(
        "analyses of a network, ablations, speed of the machine",
        "evaluation training estimation render weights models ops data pictures files "
        "config errors",
    ),
    "adaptation": room(
        "better flow on footage without truth",
        "video evaluation training estimation render weights ops data pictures files config errors",
    ),
    "tracking": room(
        "points through a clip; steady videos",
        "video estimation ops files config errors",
    ),
    "video": room(
        "sources, frames, flows, cuts, writers, checkpoints; slow motion",
        "estimation data pictures files fence errors",
    ),
    "evaluation": room(
        "metrics, predict then score, tables, submissions, calibration",
        "estimation render weights data pictures files config errors",
    ),
    "training": room(
        "recipe, losses, loop, gauges of each level, run folder, several processes",
        "estimation render accelerated weights models ops data pictures files config lazy errors",
    ),
    "hub": room("the Hugging Face hub", "estimation weights models files config errors"),
    "estimation": room(
        "images to flow, confidence, occlusion; sequences, warping, interpolation, export",
        "_version accelerated weights models ops pictures files config errors",
    ),
    "render": room(
        "training scenes on the device: textures, shapes, motions, compositing, camera",
        "ops data files config lazy errors",
    ),
    "accelerated": room(
        "the same computation, faster: one folder per layer, for CPUs, CUDA and training",
        "models ops environ errors",
    ),
    "weights": room(
        "safetensors that carry their config; import of the authors' checkpoints",
        "models files config errors",
    ),
    "models": room(
        "the paper's network: pyramids, matchers, projection, context nets; the hosts around them",
        "ops config errors",
    ),
    "ops": room("pure tensor functions: windows, readout, warp, resize, pad"),
    "data": room(
        "one listing function per data set, FlowPair to FlowSample to FlowBatch, augmentation",
        "files config fence errors",
    ),
    "pictures": room(
        "colours of flow, arrows, keys, contact sheets; the only gateway to matplotlib",
        "files errors",
    ),
    "files": room("flow files, disparity, images: written whole or not at all", "fence errors"),
    "config": room("frozen settings of model, training and scenes, read strictly", "errors"),
    "lazy": room("names that are imported when first used"),
    "environ": room("what torch reads from the environment when it is imported"),
    "fence": room("decoders of images and videos in processes that can do nothing else", "errors"),
    "errors": room("InputError and its helpers; a signal that stops a run"),
    "_version": room("the version"),
}
WITHOUT_PYTHON = {
    "recipes": "one TOML per training stage",
    "demo": "the frames of `dicl-flow demo`",
}


_BLOCK = re.compile(r"(?<=<!-- rooms -->\n```\n).*?(?=```\n)", re.DOTALL)


def tree():
    """The rooms as docs/architecture.md shows them."""
    purposes = {_entry(name): ROOMS[name].purpose for name in ROOMS}
    purposes |= {f"{name}/": purpose for name, purpose in WITHOUT_PYTHON.items()}
    width = max(map(len, purposes)) + 2
    lines = [f"  {entry:{width}}{purpose}\n" for entry, purpose in purposes.items()]
    return "src/dicl_flow/\n" + "".join(lines)


def shown():
    """The tree that the page shows."""
    return _BLOCK.search(PAGE.read_text(encoding="utf-8"))[0]


def _entry(name):
    return f"{name}/" if (SOURCE / name).is_dir() else f"{name}.py"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(shown(), tree()), encoding="utf-8")
