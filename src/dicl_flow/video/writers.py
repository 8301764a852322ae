"""Writers of flows: files, an array that grows, a table of statistics; and pictures of flows."""

import csv
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from io import BytesIO
from math import atan2, degrees, isqrt
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, check_name
from ..estimation.result import FlowResult
from ..estimation.warping import warp
from ..files import Array, encode_flow, encode_image, naming, read_image, replacing, write_files
from ..pictures import visualize
from ..pictures.keys import add_caption, add_key
from ..pictures.visualize import OUT_OF_RANGE, confidence_to_grey, flow_statistics, known_flow
from .flows import FrameFlow, arriving

Prepared: TypeAlias = Array | Callable[[], Array]
"""An array to write, or a function that waits until it has arrived from the device."""

_BACKWARD, _OCCLUSION = "_backward", "_occlusion"  # suffixes of a frame's name


class Writer:
    """Takes flows in order, and commits them in pieces of `piece` flows, in the writing thread."""

    piece = 1

    def __init__(self) -> None:
        self.memory: dict[str, float] = {}
        """What it remembers of earlier flows; restored when a run is resumed."""
        self.done = 0
        """How many flows were written, those of earlier runs included; `run` counts."""

    def resume(self, done: int) -> None:
        """Prepare for flow number `done`; remove output of it and of later ones."""

    def prepare(self, flow: FrameFlow) -> Prepared:
        """Return the array to write, (H, W, 2); called in the estimating thread, for torch."""
        return flow.result.flow

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write the prepared array of the next flow; None if a frame is broken."""
        raise NotImplementedError

    def commit(self) -> "Future[None] | None":
        """Make what was written survive a kill; returns a future if this takes time."""
        return None

    def stop(self) -> None:
        """Abandon what is not committed: the run ends early."""

    def finish(self) -> Path:
        """Move the output to its destination, and return that."""
        raise NotImplementedError

    def summary(self) -> dict[str, float]:
        """Numbers to print at the end."""
        return {}


class FolderWriter(Writer):
    """A folder of files, each written whole or not at all; `parts` are patterns of their parts."""

    def __init__(self, folder: Path, *parts: str) -> None:
        super().__init__()
        self.folder, self._parts, self._has_folder = folder, parts, False

    def resume(self, done: int) -> None:
        """Remove partly written files of a killed run."""
        self._has_folder = done > 0
        for pattern in self._parts:
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def make_folder(self) -> None:
        """Create the folder, but only once: one that is lost took files with it."""
        if not self._has_folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._has_folder = True
        elif not self.folder.is_dir():
            raise FileNotFoundError(f"cannot write to {self.folder}: the folder is gone")

    def finish(self) -> Path:
        """Return the folder; everything has been written."""
        return self.folder


class FlowFiles(FolderWriter):
    """A folder with a flow file for each frame, NAME; also NAME_backward, NAME_occlusion.png."""

    def __init__(
        self, folder: Path, suffix: str, *, backward: bool = False, occlusion: bool = False
    ) -> None:
        super().__init__(folder, f".*{suffix}.*", f".*{_OCCLUSION}.png.*")
        self.suffix, self.backward, self.occlusion = suffix, backward, occlusion

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Write the files of a flow; none if a frame is broken."""
        if prepared is not None:
            self.make_folder()
            write_files(self._contents(flow.frame.name, flow.result))

    def _contents(self, name: str, result: FlowResult) -> dict[Path, bytes]:
        taken = [_BACKWARD] * self.backward + [_OCCLUSION] * self.occlusion
        if name.endswith(tuple(taken)):
            raise InputError(
                f"frame {name}: its flow file would be taken for another frame's; rename the frame"
            )
        ways = {"": result, **({_BACKWARD: result.backward} if self.backward else {})}
        files = {self.folder / f"{name}{end}{self.suffix}": way for end, way in ways.items()}
        contents = {path: encode_flow(path, way.flow) for path, way in files.items() if way}
        if self.occlusion:
            path = self.folder / f"{name}{_OCCLUSION}.png"
            contents[path] = encode_image(path, confidence_to_grey(np.asarray(result.occlusion)))
        return contents


def check_one_size(what: str, size: Sequence[float], first: Sequence[float]) -> None:
    """Refuse (height, width) of another size than the first."""
    if tuple(size) != tuple(first):
        now, before = (f"{width:.0f}x{height:.0f}" for height, width in (size, first))
        raise InputError(
            f"all {what} must have one size; this is {now} after {before}; write a folder"
        )


def refuse_one_name(frames: Sequence[Path], suffix: str) -> None:
    """Refuse frames whose flows would have the same file name: f0.jpg and f0.png."""
    known: dict[str, Path] = {}
    for frame in frames[:-1]:  # the last one has no flow
        other = known.setdefault(frame.stem, frame)
        if other is not frame:
            raise InputError(
                f"the flows of {other} and {frame} would be one file, {frame.stem}{suffix}; select "
                "frames by a pattern such as 'frames/*.png', or rename one"
            )


class FlowStack(Writer):
    """One .npy file (T, H, W, 2) float32 that grows; unknown (NaN) if a frame is broken.

    With `backward` (T, 2, H, W, 2): [t, 0] is the forward flow, [t, 1] the backward flow.
    numpy leaves room in the header for a longer first axis: it is updated in place.
    """

    def __init__(self, output: Path, parts: Path, *, backward: bool = False) -> None:
        super().__init__()
        self.output, self._part, self.backward = output, parts / "stack.npy", backward

    def resume(self, done: int) -> None:
        """Cut the file after `done` flows."""
        if not self.memory:  # the size is not known yet
            self._part.unlink(missing_ok=True)
        elif self._part.exists():
            os.truncate(self._part, len(self._header(done)) + done * 4 * int(np.prod(self._shape)))
        else:
            raise InputError(f"{self._part} is missing; start again with `restart=True`")

    def prepare(self, flow: FrameFlow) -> Array:
        """(H, W, 2), or in both directions (2, H, W, 2)."""
        if not self.backward:
            return flow.result.flow
        assert flow.result.backward is not None
        return np.stack([flow.result.flow, flow.result.backward.flow])

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Append a flow."""
        if prepared is not None and not self.memory:
            height, width = prepared.shape[-3:-1]
            self.memory.update(stack_height=height, stack_width=width)
            with naming(self.output):
                self._part.write_bytes(self._header(0))
            for _ in range(self.done):
                self._append(np.full(self._shape, np.nan))
        if prepared is not None:
            check_one_size("flows of an array", prepared.shape[-3:-1], self._shape[-3:-1])
        if self.memory:
            self._append(np.full(self._shape, np.nan) if prepared is None else prepared)

    def commit(self) -> None:
        """Update the header, so that the appended flows belong to the array."""
        if self.memory:
            with naming(self.output), self._part.open("r+b") as file:
                file.write(self._header(self.done))

    def finish(self) -> Path:
        """Link the file to its destination; killed before all writers are done, it is needed."""
        with replacing(self.output) as temporary:
            temporary.unlink()
            try:
                os.link(self._part, temporary)
            except OSError:  # another disk, or one without links
                shutil.copyfile(self._part, temporary)
        return self.output

    @property
    def _shape(self) -> tuple[int, ...]:
        size = int(self.memory["stack_height"]), int(self.memory["stack_width"])
        return (2, *size, 2) if self.backward else (*size, 2)

    def _append(self, array: Array) -> None:
        with naming(self.output), self._part.open("r+b") as file:  # which "ab" would create
            file.seek(0, os.SEEK_END)
            file.write(array.astype("<f4").tobytes())

    def _header(self, count: int) -> bytes:
        buffer = BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, *self._shape)}
        np.lib.format.write_array_header_1_0(buffer, about)
        return buffer.getvalue()


COLUMNS = ["frame", "time", "known", "mean_length", "median_length", "p95_length", "max_length"]
COLUMNS += ["direction", "moving_share", "mean_confidence", "occluded", "scene_cut", "problem"]
_SPEEDS = {f"{kind}_length": f"{kind}_speed_px_per_s" for kind in ("mean", "median", "p95", "max")}
COLUMNS += _SPEEDS.values()
_MOVING = 0.5  # px


def read_mask(path: Path, size: tuple[int, int]) -> Array:
    """Read an image as (H, W) bool: where it is not black; `size` is that of the frames."""
    mask = np.asarray(read_image(path)).any(-1)
    if mask.shape != size:
        given, wanted = (f"{width}x{height}" for height, width in (mask.shape, size))
        raise InputError(f"{path} must have the size of the frames, {wanted}, got {given}")
    if not mask.any():
        raise InputError(f"{path} is black everywhere; pixels of the region must not be black")
    return mask


def parse_region(text: str, size: tuple[int, int]) -> Array:
    """Read "x,y,w,h" as (H, W) bool: inside of the rectangle; `size` is that of the frames."""
    numbers = re.fullmatch(r"(\d+),(\d+),(\d+),(\d+)", text.replace(" ", ""))
    x, y, width, height = map(int, numbers.groups()) if numbers else (0, 0, 0, 0)
    if not (width and height):
        raise InputError(
            "`region` must be x,y,width,height in whole pixels, as 100,50,64,48, width and height "
            f"at least 1, got {text!r}"
        )
    if x + width > size[1] or y + height > size[0]:
        raise InputError(
            f"`region` must lie in the frames, which are {size[1]}x{size[0]}, got {text}, which "
            f"ends at {x + width},{y + height}"
        )
    inside = np.zeros(size, bool)
    inside[y : y + height, x : x + width] = True
    return inside


class Covered(NamedTuple):
    """What statistics cover, and the rate of what has no time."""

    region: Array | None = None
    """(H, W) bool, of the size of the flow; None: all pixels."""
    rate: float | None = None
    """Of frames that are images, per second, if it is known."""

    def pixels(self, values: Array) -> Array:
        """Return the values in the region."""
        if self.region is None:
            return values
        if values.shape[:2] != self.region.shape:
            height, width = values.shape[:2]
            raise InputError(
                f"with a region, all frames must have one size; this is {width}x{height} after "
                f"{self.region.shape[1]}x{self.region.shape[0]}"
            )
        return np.asarray(values[self.region])

    def seconds(self, flow: FrameFlow) -> float | None:
        """The time from one frame to the other, if it is known."""
        if flow.seconds is None and self.rate:
            return (flow.following.number - flow.frame.number) / self.rate
        return flow.seconds


EVERYWHERE = Covered()


def describe(flow: FrameFlow, covered: Covered = EVERYWHERE) -> dict[str, object]:
    """Motion of the known pixels in px, direction in degrees (0 right, 90 down), confidence etc."""
    row: dict[str, object] = {"frame": flow.frame.number, "problem": flow.problem}
    if flow.frame.time is not None:
        row["time"] = f"{flow.frame.time:.4f}"
    if flow.problem:
        return row
    motion, seconds = covered.pixels(flow.result.flow), covered.seconds(flow)
    known = known_flow(motion)
    numbers = {"known": 0.0}
    if known.any():
        found = flow_statistics(motion)
        numbers = {name: value for name, value in found.items() if name in COLUMNS}
        numbers["direction"] = degrees(atan2(found["mean_y"], found["mean_x"]))
        lengths = np.hypot(motion[..., 0], motion[..., 1])
        numbers["moving_share"] = float((lengths[known] > _MOVING).mean())
        if seconds:
            numbers |= {speed: found[length] / seconds for length, speed in _SPEEDS.items()}
    numbers["mean_confidence"] = float(covered.pixels(flow.result.confidence).mean())
    if flow.result.occlusion is not None:
        numbers["occluded"] = float(covered.pixels(flow.result.occlusion).mean())
    row["scene_cut"] = int(flow.is_cut)
    return {**row, **{name: f"{value:.5g}" for name, value in numbers.items()}}


class StatisticsTable(Writer):
    """A CSV file with one row for each flow."""

    def __init__(self, output: Path, parts: Path, covered: Covered = EVERYWHERE) -> None:
        super().__init__()
        self.output, self._part, self._covered = output, parts / "statistics.csv", covered
        self._rows: list[dict[str, object]] = []

    def resume(self, done: int) -> None:
        """Keep the header and `done` rows."""
        header = [",".join(COLUMNS) + "\n"]
        lines = self._part.read_text().splitlines(keepends=True) if done else header
        write_files({self._part: "".join(lines[: done + 1]).encode()})

    def write(self, flow: FrameFlow, prepared: Array | None) -> None:
        """Add a row."""
        row = describe(flow, self._covered)
        self._rows.append(row)
        for column in {"mean_length", "mean_speed_px_per_s"} & row.keys():
            for name, value in ((column, float(str(row[column]))), (f"{column} rows", 1)):
                self.memory[name] = self.memory.get(name, 0) + value

    def summary(self) -> dict[str, float]:
        """The mean motion of all flows, in both units."""
        names = {"mean_length": "mean_length_px_per_frame"}
        return {
            names.get(column, column): self.memory[column] / self.memory[f"{column} rows"]
            for column in ("mean_length", "mean_speed_px_per_s")
            if column in self.memory
        }

    def commit(self) -> None:
        """Append the rows."""
        with naming(self.output), self._part.open("a") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(self._rows)
        self._rows.clear()

    def finish(self) -> Path:
        """Write the table to its destination."""
        write_files({self.output: self._part.read_bytes()})
        return self.output


def flow_colors(flow: Tensor, maximum: float | Tensor) -> Tensor:
    """(2, H, W) -> (H, W, 3) uint8: `visualize.flow_to_rgb`, up to 1, in float32 on the device."""
    known = flow.abs().amax(0) < 1e9  # false for NaN as well
    x, y = torch.where(known, flow, 0).unbind(0)
    saturation = torch.hypot(x, y) / maximum
    corners, slopes = _wheel(flow.device)  # (3, 55) each
    position = (torch.atan2(-y, -x) / torch.pi + 1) * ((corners.shape[1] - 1) / 2)
    below = position.long().flatten().expand(3, -1)
    hue = corners.gather(1, below) + slopes.gather(1, below) * (position % 1).flatten()
    hue = hue.unflatten(1, x.shape)
    color = torch.where(saturation <= 1, 1 - saturation * (1 - hue), hue * OUT_OF_RANGE)
    return torch.where(known, 255 * color, 0).to(torch.uint8).permute(1, 2, 0).contiguous()


@lru_cache(maxsize=4)
@torch.inference_mode(mode=False)
def _wheel(device: torch.device) -> tuple[Tensor, Tensor]:
    """Colours, and the differences to the next colours, by channel."""
    wheel = torch.from_numpy(visualize.color_wheel().T.copy())
    slopes = wheel.roll(-1, 1) - wheel
    return wheel.float().to(device), slopes.float().to(device)


def _grey(values: Array) -> Array:
    return np.dstack([confidence_to_grey(values)] * 3)


def _difference(flow: FrameFlow, maximum: Tensor) -> Tensor:
    """Difference of frame 1 and frame 2 warped by the flow; black where the flow leads outside."""
    first, second = (
        torch.from_numpy(image).to(flow.flow.device).permute(2, 0, 1)[None].float()
        for image in flow.images
    )
    inside = torch.ones_like(second[:, :1])
    warped, inside = warp(torch.cat([second, inside], 1), flow.flow[None]).split([3, 1], 1)
    difference = (warped - first).abs() * (inside > 0.999)
    return difference[0].byte().permute(1, 2, 0).contiguous()


PANELS: dict[str, Callable[[FrameFlow, Tensor], Array | Tensor]] = {
    "frame": lambda flow, maximum: flow.images[0],
    "wheel": lambda flow, maximum: flow_colors(flow.flow, maximum),
    "overlay": lambda flow, maximum: visualize.tint(
        flow.images[0], flow_colors(flow.flow, maximum).cpu().numpy()
    ),
    "arrows": lambda flow, maximum: visualize.draw_arrows(
        flow.images[0], flow.result.flow, maximum=float(maximum)
    ),
    "difference": _difference,
    "confidence": lambda flow, maximum: _grey(flow.result.confidence),
    # white where a pixel of frame 1 is hidden in frame 2
    "occlusion": lambda flow, maximum: _grey(np.asarray(flow.result.occlusion)),
}


_CAPTIONS = {
    "wheel": "flow",
    "overlay": "overlay, frame coloured by flow",
    "arrows": "arrows, drawn to scale",
    "difference": "difference, frame 2 warped - frame 1",
    "confidence": "confidence, white is confident",
    "occlusion": "occlusion, white is hidden",
}


def parse_panels(text: str) -> tuple[str, ...]:
    """Read "frame,wheel": names of `PANELS`, in the order in which they are shown."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        check_name("`show`", name, PANELS)
    if len(set(names)) < len(names):
        raise InputError(f"`show` names a picture twice: {text}")
    return names


def draw(
    panels: Sequence[str], flow: FrameFlow, maximum: Tensor, *, key: bool = False
) -> Callable[[], Array]:
    """Draw all panels; return a function that waits for them and puts them on one picture.

    `maximum` is the length in px of full colour, and of a full arrow. With `key`, each panel has
    a caption, and those that show flow have a key.
    """
    drawn = [PANELS[name](flow, maximum[int(name == "arrows")]) for name in panels]
    begun = [arriving(panel) if isinstance(panel, Tensor) else panel for panel in drawn]
    longest = arriving(maximum)

    def explain(name: str, picture: Array) -> Array:
        picture = add_key(name, picture, float(longest()[int(name == "arrows")]))
        return add_caption(picture, _CAPTIONS.get(name, name))

    def sheet() -> Array:
        """(H, W, 3): two side by side, four as 2x2."""
        pictures = [picture() if callable(picture) else picture for picture in begun]
        if key:
            pictures = [*map(explain, panels, pictures)]
        if len(pictures) == 1:
            return pictures[0].copy()  # what arrived from a device lies in memory that is scarce
        columns = isqrt(len(pictures) - 1) + 1
        pictures += [np.zeros_like(pictures[0])] * (-len(pictures) % columns)
        rows = range(0, len(pictures), columns)
        return np.concatenate([np.concatenate(pictures[row : row + columns], 1) for row in rows])

    return sheet
