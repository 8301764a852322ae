"""Every command that writes, small: what it writes, and what another run writes equally."""

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import cv2
import numpy as np

_SMALL = (
    "--set model.levels=[{stride=8,radius=1,context=[[4,1]]}] --set model.matcher=dot "
    "--set model.multiple=1 --set model.feature_channels=2 --set augment.crop=[32,32] "
    "--set render.sizes=[] --set loss.refined=[1.0] --set loss.matched=[1.0] "
    "--set loss.matching=[] --set optimizer.precision=fp32 --set optimizer.accumulate=1 "
    "--set backend=plain "
    "--set validate_every=0 --set steps=3 --set batch=1 --set workers=0 --set save_every=1 "
    "--set log_every=1 --set picture_every=2"
)
_PAIR = "{in}/frames/f0.png {in}/frames/f1.png"


@dataclass(frozen=True)
class DiskWriter:
    """A command, with {in} for the inputs and {out} for the folder that it writes to."""

    command: str
    before: tuple[str, ...] = ()
    """Files that are there already."""
    varies: tuple[str, ...] = ()
    """Patterns of files that are different in every run: times, speeds."""
    again: str = ""
    """Added to the command when it is repeated after a fault."""
    keeps: tuple[str, ...] = ()
    """Patterns of what a failed run leaves for the next one."""
    moments: int | None = None
    """Fewer moments, because it takes long."""

    def is_exact(self, name: str) -> bool:
        """Whether a file is the same in every run."""
        varies = (*self.varies, "*.finished.json")  # it holds the times of the outputs
        return not any(fnmatch(name, pattern) for pattern in varies)

    def may_leave(self, name: str) -> bool:
        """Whether a failed run may leave a file."""
        return any(fnmatch(name, pattern) for pattern in self.keeps)


WRITERS = {
    "flow": DiskWriter(
        f"flow {_PAIR} -w {{in}}/w.safetensors -o {{out}}/x.flo --image {{out}}/x.png "
        "--backward {out}/b.npz --occlusion {out}/o.png",
        before=("x.flo", "x.png"),
    ),
    "flow.exr": DiskWriter(f"flow {_PAIR} -w {{in}}/w.safetensors -o {{out}}/x.exr", ("x.exr",)),
    "show": DiskWriter("show {in}/f.flo -o {out}/x.png", ("x.png",)),
    "warp": DiskWriter("warp {in}/frames/f1.png {in}/f.flo -o {out}/x.png", ("x.png",)),
    "interpolate": DiskWriter(
        f"interpolate {_PAIR} -w {{in}}/w.safetensors -n 2 -o {{out}}/x.png", ("x_1.png",)
    ),
    "video.npy": DiskWriter(
        "video {in}/frames -w {in}/w.safetensors -o {out}/x.npy --stats {out}/x.csv -q",
        before=("x.npy",),
        keeps=("x.npy.parts/*",),
    ),
    "video.mp4": DiskWriter(
        "video {in}/frames -w {in}/w.safetensors -o {out}/x.mp4 -q",
        before=("x.mp4",),
        keeps=("x.mp4.parts/*",),
    ),
    "video.gif": DiskWriter(
        "video {in}/frames -w {in}/w.safetensors -o {out}/x.gif -q",
        keeps=("x.gif.parts/*",),
    ),
    "video folder": DiskWriter(
        "video {in}/frames -w {in}/w.safetensors -o {out}/flows --format flo -q",
        keeps=("flows.parts/*", "flows/*.flo"),
    ),
    "slow.mp4": DiskWriter(
        "interpolate {in}/frames -w {in}/w.safetensors --factor 2 -o {out}/x.mp4 -q",
        before=("x.mp4",),
        keeps=("x.mp4.parts/*",),
    ),
    "slow folder": DiskWriter(
        "interpolate {in}/frames -w {in}/w.safetensors --factor 2 -o {out}/slow -q",
        keeps=("slow.parts/*", "slow/*.png"),
    ),
    "track": DiskWriter(
        "track {in}/frames -w {in}/w.safetensors --grid 16 --intervals 1,2 -o {out}/x.npz "
        "--video {out}/x.mp4 -q",
        before=("x.npz",),
        keeps=("x.npz.parts/*",),
    ),
    "stabilize.mp4": DiskWriter(
        "stabilize {in}/frames -w {in}/w.safetensors -o {out}/x.mp4 --path {out}/x.csv -q",
        before=("x.mp4",),
        keeps=("x.mp4.parts/*",),
    ),
    "stabilize folder": DiskWriter(
        "stabilize {in}/frames -w {in}/w.safetensors -o {out}/steady -q",
        keeps=("steady.parts/*", "steady/*.png"),
    ),
    "bulk": DiskWriter(
        "bulk run {in}/frames/list.csv -o {out}/bulk -w {in}/w.safetensors --table csv "
        "--fields npy --flows flo -q",
        varies=("bulk/journal*", "bulk/summary*"),
        keeps=("bulk/*",),
    ),
    "bulk list": DiskWriter("bulk list {in}/frames -o {out}/x.csv", ("x.csv",)),
    "render": DiskWriter(
        "render procedural -n 1 --size 32x32 -o {out}/scenes -q",
        keeps=("scenes/*_*",),
        moments=1,
    ),
    "convert": DiskWriter(
        "convert {in}/w.pth.tar -o {out}/x.safetensors", ("x.safetensors",), moments=2
    ),
    "calibrate": DiskWriter(
        "calibrate -w {in}/w.safetensors -d rendered=procedural -n 3 --size 64x64 "
        "--threshold 40 -o {out}/x.safetensors -q",
        ("x.safetensors",),
        moments=1,
    ),
    "train": DiskWriter(
        f"train rendered-0 --data rendered=procedural -o {{out}}/run -q --init random {_SMALL}",
        varies=("run/log.jsonl", "run/last.ckpt", "run/tensorboard/*"),
        again="--resume",
        keeps=("run/*",),
        moments=2,
    ),
    "eval": DiskWriter(
        "eval -d pairs={in}/pairs -w {in}/w.safetensors -o {out}/x.json -q",
        ("x.json",),
        varies=("x.json",),
    ),
    "data check": DiskWriter("data check pairs {in}/pairs -o {out}/x.png", ("x.png",)),
    "analyze kernels": DiskWriter(
        "analyze kernels -w {in}/w.safetensors -o {out}/kernels",
        varies=("*.json",),
        keeps=("kernels/*",),
    ),
    "analyze compare": DiskWriter(
        "analyze compare dis -d pairs={in}/pairs -o {out}/compared",
        varies=("*.json",),
        keeps=("compared/*",),
    ),
    "demo": DiskWriter("demo -w {in}/w.safetensors -o {out}/demo", keeps=("demo/*",), moments=1),
    "export": DiskWriter(
        "export --size 16x16 -w {in}/w.safetensors -o {out}/x.pt2 -q",
        ("x.pt2",),
        varies=("*.pt2",),
        moments=1,
    ),
}


def make_inputs(folder: Path) -> Path:
    """Write all that the commands read."""
    from .formats.weights import FORMATS

    frames = folder / "frames"
    (folder / "pairs").mkdir(parents=True)
    frames.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    texture = cv2.resize(noise, (120, 80))
    for number in range(5):
        part = texture[8 : 8 + 48, 2 * number : 2 * number + 64]
        cv2.imwrite(str(frames / f"f{number}.png"), part)
        cv2.imwrite(str(folder / "pairs" / f"f{number}.png"), part)
    (frames / "list.csv").write_text("image1,image2\nf0.png,f1.png\nf1.png,f2.png\n")
    flow = np.full((48, 64, 2), (-2, 0), "<f4")
    for path in (folder / "f.flo", folder / "pairs" / "f0.flo"):
        path.write_bytes(b"PIEH" + np.array([64, 48], "<i4").tobytes() + flow.tobytes())
    (folder / "w.pth.tar").write_bytes(FORMATS["legacy"].seeds()[0])
    _write_weights(folder / "w.safetensors")
    return folder


def _write_weights(path: Path) -> None:
    import torch

    from dicl_flow import LevelConfig, ModelConfig, build
    from dicl_flow.weights import Weights, encode_weights

    torch.manual_seed(0)
    config = ModelConfig(levels=(LevelConfig(8, 1, ((4, 1),)),), feature_channels=2, matcher="dot")
    path.write_bytes(encode_weights(Weights(config, build(config).state_dict())))
