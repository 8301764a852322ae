"""What one looks at in the explorer: clips, their flows by each network, and the beliefs."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch

from ..errors import InputError
from ..estimation.compute import choose_device
from ..estimation.confidence import find_occlusion
from ..estimation.estimator import FlowEstimator
from ..files import Array
from ..lab.analyses import describe_pixel
from ..lab.volumes import Volumes, estimate_with_volumes, has_projection, open_networks
from .exploration_clips import Clip

MOST_NETWORKS = 4
_KEPT_BYTES = 1 << 29  # of estimates and frames
_KEPT_CLIPS = 8  # uploaded ones
Value = TypeVar("Value")


class View(NamedTuple):
    """A pair of a clip, seen by a network."""

    clip: str
    pair: int
    network: int


@dataclass(frozen=True)
class Explored:
    """The estimate of a pair, with the volumes behind it."""

    flow: Array
    """(H, W, 2) float32."""
    confidence: Array
    """(H, W) float32."""
    volumes: Volumes
    projection: bool
    """Whether the network has one."""

    def level(self, stride: int, stage: str) -> Array:
        """The flow of a level at the size of the frame, "matched" or "refined", (H, W, 2)."""
        if stride not in self.volumes.levels or stage not in ("matched", "refined"):
            raise InputError(f"there is no {stage} flow of stride {stride}")
        return self.volumes.to_frame(getattr(self.volumes.levels[stride], stage))

    def beliefs(self, x: int, y: int) -> dict[str, Any]:
        """What each level believed about the pixel (x, y) of frame 1."""
        return describe_pixel(self.volumes, x, y, projection=self.projection)


def open_explored(weights: Sequence[str], device: str, precision: str) -> dict[str, FlowEstimator]:
    """Load up to four networks; accelerated on a CPU, where it has volumes to record."""
    if len(weights) > MOST_NETWORKS:
        raise InputError(f"at most {MOST_NETWORKS} `weights` can be compared, got {len(weights)}")
    backend = "auto" if choose_device(device).type == "cpu" else "plain"
    return open_networks(weights or [None], device, precision, backend)


class Exploration:
    """Computes what the page asks for, once; the least recently used is forgotten first.

    Estimates and occlusion are computed in one thread: hooks of one run must not see another.
    """

    def __init__(self, networks: Mapping[str, FlowEstimator], clip: Clip) -> None:
        self._networks = dict(networks)
        self._clips: OrderedDict[str, Clip] = OrderedDict({"0": clip})
        self._kept = _Kept(_KEPT_BYTES)

    def add(self, clip: Clip) -> str:
        """Add an uploaded clip; return its id, which nobody can guess."""
        name = secrets.token_urlsafe(9)
        self._clips[name] = clip
        uploaded = [key for key in self._clips if key != "0"]
        for oldest in uploaded[:-_KEPT_CLIPS]:
            self._clips.pop(oldest).close()
        return name

    def close(self) -> None:
        """Remove what the clips have on disk."""
        for clip in self._clips.values():
            clip.close()

    def clip(self, name: str) -> Clip:
        """Return a clip by its id; "0" is the one of the start."""
        if name not in self._clips:
            raise InputError(f"there is no clip {name} any more; open the files again")
        return self._clips[name]

    def summary(self, clip: str) -> dict[str, Any]:
        """The clip and the networks, for JSON."""
        networks = [
            {
                "name": name,
                "strides": list(estimator.model.config.strides),
                "projection": has_projection(estimator),
            }
            for name, estimator in self._networks.items()
        ]
        return {"id": clip, **self.clip(clip).summary(), "networks": networks}

    def frames(self, clip: str, pair: int) -> tuple[Array, Array]:
        """Both frames of a pair, (H, W, 3) RGB."""
        return self._kept.get(("frames", clip, pair), self.clip(clip).pair(pair).frames)

    def truth(self, clip: str, pair: int) -> Array:
        """The true flow of a pair, (H, W, 2) float32, NaN where it is unknown."""
        truth = self.clip(clip).pair(pair).truth()
        if truth is None:
            raise InputError("the true flow of this pair is not known")
        return truth

    def estimate(self, view: View) -> Explored:
        """The flow of a pair by a network, and the volumes behind it."""

        def compute() -> Explored:
            network, frames = self._network(view), self.frames(view.clip, view.pair)
            result, volumes = estimate_with_volumes(network, *frames)
            return Explored(result.flow, result.confidence, volumes, has_projection(network))

        return self._kept.get(("estimate", view), compute)

    def occlusion(self, view: View) -> Array:
        """(H, W) bool: pixels of frame 1 that are hidden in frame 2."""

        def compute() -> Array:
            image1, image2 = self.frames(view.clip, view.pair)
            flows = self.estimate(view).flow, self._network(view)(image2, image1).flow
            there, back = (torch.from_numpy(flow).permute(2, 0, 1)[None] for flow in flows)
            return find_occlusion(there, back)[0, 0].numpy()

        return self._kept.get(("occlusion", view), compute)

    def known(self, what: str, view: View) -> Any:
        """The "estimate" or "occlusion" if it was computed already, else None."""
        return self._kept.find((what, view))

    def _network(self, view: View) -> FlowEstimator:
        if not 0 <= view.network < len(self._networks):
            raise InputError(f"there are {len(self._networks)} networks, got {view.network}")
        return list(self._networks.values())[view.network]


class _Kept:
    """Values by key, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, Lock()
        self._values: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def find(self, key: tuple[Any, ...]) -> Any:
        """Return a value, or None if it is not there."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def get(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """Return a value; if it is not there, make it."""
        found = self.find(key)
        if found is not None:
            return cast(Value, found)
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > 1 and sum(map(_bytes, self._values.values())) > self._limit:
                self._values.popitem(last=False)
        return value


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.nbytes
    if isinstance(value, Explored):
        return _bytes((value.flow, value.confidence, *value.volumes.levels.values()))
    return sum(map(_bytes, value))
