"""Every command that takes frames, on the pairs of a folder, for `campaigns.numbers`."""

from pathlib import Path

from .killable import RECIPE

_HOW = "-w {weights} --device cpu --precision fp32 --json"
_ANALYZED = "--pair {first} {second} --truth {truth}"
COMMANDS = {
    "flow": "flow {first} {second} -o {out}/flow.flo --backward {out}/back.npz "
    "--image {out}/image.png --overlay {out}/overlay.png --arrows {out}/arrows.png "
    "--confidence {out}/confidence.png --occlusion {out}/occlusion.png " + _HOW,
    "video": "video {folder} -o {out}/a.mp4 -o {out}/b.npy -o {out}/c --stats {out}/d.csv "
    "--backward --occlusion --show wheel,arrows " + _HOW,
    "interpolate": "interpolate {first} {second} -o {out}/between.png " + _HOW,
    "interpolate a clip": "interpolate {folder} --factor 2 -o {out}/slow.mp4 " + _HOW,
    "track": "track {folder} --grid 1 -o {out}/a.csv --video {out}/b.mp4 " + _HOW,
    "stabilize": "stabilize {folder} -o {out}/steady --path {out}/path.csv " + _HOW,
    "warp": "warp {second} {truth} -o {out}/warped.png --json",
    "show": "show {truth} -o {out}/flow.png --json",
    "bulk": "bulk {folder} -o {out}/bulk --table csv --fields npy --grid 4 --flows npz "
    "--occlusion " + _HOW,
    "eval": "eval -d pairs={folder} -o {out}/scores.json --worst 1 {out}/worst --baseline dis "
    + _HOW,
    "data check": "data check pairs {folder} -o {out}/sheet.png --json",
    "analyze pixel": f"analyze pixel {{x}} {{y}} {_ANALYZED} -o {{out}}/analysis {_HOW}",
    "analyze peaks": f"analyze peaks {_ANALYZED} -o {{out}}/analysis {_HOW}",
    "analyze levels": f"analyze levels {_ANALYZED} -o {{out}}/analysis {_HOW}",
    "analyze compare": f"analyze compare {{weights}} dis {_ANALYZED} -o {{out}}/sheets "
    "--device cpu --precision fp32 --json",
    "train": "train {recipe} -d pairs={folder} -o {out}/run --device cpu --json "
    "--quiet",  # without lines of progress
}


class Pair:
    """a_img1.png, a_img2.png and a_flow.flo in a folder; outputs go to another one."""

    def __init__(self, folder: Path, weights: Path, size: tuple[int, int]) -> None:
        self.folder, self.out, self.weights = folder, folder.with_name("out"), weights
        self.first, self.second = folder / "a_img1.png", folder / "a_img2.png"
        self.truth, self.recipe = folder / "a_flow.flo", folder.with_name("recipe.toml")
        self.y, self.x = (side // 2 for side in size)

    def words(self, command: str) -> list[str]:
        """Return the words of one of `COMMANDS`."""
        self.recipe.write_text(RECIPE.replace("steps = 5", "steps = 2"))
        return [word.format(**vars(self)) for word in COMMANDS[command].split()]
