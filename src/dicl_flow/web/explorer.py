"""The explorer: clips, their flows by each network, and what its page asks the server for."""

import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ..errors import InputError
from ..estimation.compute import choose_device
from ..estimation.confidence import find_occlusion
from ..estimation.estimator import FlowEstimator
from ..files import FLOW_SUFFIXES, Array, encode_flow, encode_image, to_uint8
from ..lab.analyses import describe_pixel
from ..lab.volumes import Volumes, estimate_with_volumes, has_projection, open_networks
from .clips import Clip, clip_of_arrays, clip_of_upload
from .requests import read_form, read_frames, video_container
from .service import check_seen, service_of
from .tracks import Pixel, Run, Runs

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


def open_explored(weights: Sequence[str], device: str, precision: str) -> dict[str, FlowEstimator]:
    """Load up to four networks; accelerated on a CPU, where it has volumes to record."""
    if len(weights) > 4:
        raise InputError(f"at most 4 `weights` can be compared, got {len(weights)}")
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
        self.runs = Runs()

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

    def summary(self, name: str) -> dict[str, Any]:
        """The clip and the networks, for JSON."""
        clip = self.clip(name)
        pairs = [{"name": pair.name, "truth": pair.read_truth is not None} for pair in clip.pairs]
        networks = [
            {
                "name": network,
                "strides": list(estimator.model.config.strides),
                "projection": has_projection(estimator),
            }
            for network, estimator in self._networks.items()
        ]
        about = {"name": clip.name, "pairs": pairs, "rate": clip.rate}
        return {"id": name, **about, "networks": networks}

    def frames(self, clip: str, pair: int) -> tuple[Array, Array]:
        """Both frames of a pair, (H, W, 3) RGB."""
        return self._kept.get(("frames", clip, pair), self.clip(clip).pair(pair).frames)

    def truth(self, clip: str, pair: int) -> Array:
        """The true flow of a pair, (H, W, 2) float32, NaN where it is unknown."""
        read = self.clip(clip).pair(pair).read_truth
        if read is None:
            raise InputError("the true flow of this pair is not known")
        return read()

    def estimate(self, view: View) -> Explored:
        """The flow of a pair by a network, and the volumes behind it."""

        def compute() -> Explored:
            network, frames = self._network(view), self.frames(view.clip, view.pair)
            check_seen(network, frames[0].shape[:2], "the pair")
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

    def begin(self, view: View, pixel: Pixel) -> Run:
        """Begin to follow a pixel of a pair's frame 1 through the clip."""
        network, clip = self._network(view), self.clip(view.clip)
        return Run(network, clip.stretch(view.pair), view.pair, pixel)

    def known(self, what: str, view: View) -> Any:
        """The "estimate" or "occlusion" if it was computed already, else None."""
        return self._kept.find((what, view))

    def _network(self, view: View) -> FlowEstimator:
        if not 0 <= view.network < len(self._networks):
            raise InputError(
                f"expected a network from 0 to {len(self._networks) - 1}, got {view.network}"
            )
        return list(self._networks.values())[view.network]


class _Kept:
    """Values by key, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, Lock()
        self._values: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def find(self, key: tuple[Any, ...]) -> Any:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def get(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
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


_STATIC = Path(__file__).with_name("static")


def explorer_pages(exploration: Exploration) -> list[BaseRoute]:
    """Return the routes of the page and of what it asks for."""
    endpoints = _Endpoints(exploration)
    pair = "/explore/clips/{clip}/{pair}"
    return [
        Route("/", endpoints._page),
        Mount("/static", StaticFiles(directory=_STATIC)),
        Route("/explore/clips", endpoints.upload, methods=["POST"]),
        Route("/explore/clips/{clip}", endpoints.clip),
        Route(f"{pair}/frame{{number}}.png", endpoints.frame),
        Route(f"{pair}/flow.{{suffix}}", endpoints.flow),
        *(
            Route(f"{pair}/{name}", getattr(endpoints, name))
            for name in ("estimate", "occlusion", "truth", "level", "beliefs", "track")
        ),
    ]


class _Endpoints:
    """The answers. Arrays are sent as planes of little-endian float32."""

    def __init__(self, exploration: Exploration) -> None:
        self._exploration = exploration

    async def _page(self, request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def clip(self, request: Request) -> Response:
        return JSONResponse(self._exploration.summary(request.path_params["clip"]))

    async def frame(self, request: Request) -> Response:
        number = request.path_params["number"]
        if number not in ("1", "2"):
            raise HTTPException(404, "a pair has frame1.png and frame2.png")
        service = service_of(request)
        frames = await service.in_thread(self._exploration.frames, *_place(request))
        png = await service.in_thread(encode_image, "frame.png", to_uint8(frames[int(number) - 1]))
        return Response(png, media_type="image/png")

    async def estimate(self, request: Request) -> Response:
        """Send three planes: the flow to the right, the flow down, the confidence."""
        explored = await self._computed(request, "estimate")
        return _planes(np.dstack([explored.flow, explored.confidence]))

    async def occlusion(self, request: Request) -> Response:
        """Send a byte for each pixel: 1 where it is hidden in frame 2."""
        return _binary((await self._computed(request, "occlusion")).astype(np.uint8))

    async def truth(self, request: Request) -> Response:
        return _planes(
            await service_of(request).in_thread(self._exploration.truth, *_place(request))
        )

    async def level(self, request: Request) -> Response:
        """Send two planes: the flow of a level at the size of the frame."""
        stride, stage = _integer(request, "stride"), request.query_params.get("stage", "refined")
        explored = await self._computed(request, "estimate")
        return _planes(await service_of(request).in_thread(explored.level, stride, stage))

    async def beliefs(self, request: Request) -> Response:
        """Send what each level believed about a pixel."""
        x, y = _pixel(request)
        explored = await self._computed(request, "estimate")
        found = describe_pixel(explored.volumes, x, y, projection=explored.projection)
        return JSONResponse(found)

    async def flow(self, request: Request) -> Response:
        suffix = f".{request.path_params['suffix']}"
        if suffix not in FLOW_SUFFIXES:
            raise HTTPException(404, f"known flow files: {', '.join(FLOW_SUFFIXES)}")
        explored = await self._computed(request, "estimate")
        data = await service_of(request).in_thread(encode_flow, f"flow{suffix}", explored.flow)
        headers = {"Content-Disposition": f'attachment; filename="flow{suffix}"'}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def upload(self, request: Request) -> Response:
        """Take two images, or a video with `?kind=video`, as a new clip."""
        name = Path(request.query_params.get("name", "")).name[:80] or "upload"
        if request.query_params.get("kind") == "video":
            clip = await _read_video(request, name)
        else:
            with service_of(request).admission.enter() as hold:
                clip = clip_of_arrays(name, *await read_frames(request, hold))
        return JSONResponse({"id": self._exploration.add(clip)}, 201)

    async def track(self, request: Request) -> Response:
        """Follow a pixel of frame 1 through the clip; send a line of JSON for each frame.

        The first line says which frames and intervals. A sender that leaves ends the work.
        """
        service, view, pixel = service_of(request), _view(request), _pixel(request)
        await request.body()  # so that what is received next is the end of the connection
        run = self._exploration.runs.find(view, pixel)
        if run is None:
            begin = partial(self._exploration.begin, view, pixel)
            with service.admission.enter():
                run = await service.wait(request, service.call(begin))
            self._exploration.runs.keep(view, run)
        await _step(request, run, 0, pixel)  # what is wrong with the first is no stream yet
        return StreamingResponse(_lines(request, run, pixel), media_type="application/x-ndjson")

    async def _computed(self, request: Request, what: str) -> Any:
        """Compute in the thread of the estimator; what is known need not wait for its turn."""
        service = service_of(request)
        view = _view(request)
        known = self._exploration.known(what, view)
        if known is not None:
            return known
        compute = getattr(self._exploration, what)
        with service.admission.enter():
            await request.body()  # so that what is received next is the end of the connection
            return await service.wait(request, service.call(partial(compute, view)))


async def _step(request: Request, run: Run, step: int, pixel: Pixel) -> dict[str, Any] | None:
    """Compute a step of a run in the thread of the estimator, between the work of others."""
    if run.knows(step):
        return run.step(step, pixel)
    service = service_of(request)
    with service.admission.enter():
        return await service.wait(request, service.call(partial(run.step, step, pixel)))


async def _lines(request: Request, run: Run, pixel: Pixel) -> AsyncIterator[str]:
    """The lines of a track; an error is the last one."""
    yield json.dumps(run.summary()) + "\n"
    try:
        for number in count():
            found = await _step(request, run, number, pixel)
            if found is None:
                return
            yield json.dumps(found) + "\n"
    except ClientDisconnect:
        return
    except (InputError, HTTPException) as error:
        told = error.detail if isinstance(error, HTTPException) else str(error)
        yield json.dumps({"problem": " ".join(told.split())}) + "\n"


async def _read_video(request: Request, name: str) -> Clip:
    """Read a form with one file, the video; it is removed with the clip."""
    service, folder = service_of(request), Path(mkdtemp(prefix="dicl-flow-"))
    path, remove = folder / "video", partial(rmtree, folder, ignore_errors=True)
    try:
        with service.admission.enter(), path.open("wb") as file:
            await read_form(request, lambda field: file.write, service.limits.max_video)
        container = await service.in_thread(video_container, path)
        return await service.in_thread(clip_of_upload, path, name, container, remove)
    except BaseException:
        remove()
        raise


def _place(request: Request) -> tuple[str, int]:
    return request.path_params["clip"], _whole("a pair", request.path_params["pair"])


def _view(request: Request) -> View:
    return View(*_place(request), _integer(request, "network", "0"))


def _pixel(request: Request) -> Pixel:
    return Pixel(_integer(request, "x"), _integer(request, "y"))


def _integer(request: Request, name: str, default: str = "") -> int:
    return _whole(name, request.query_params.get(name, default))


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:  # also of a number with thousands of digits
        raise InputError(f"{name} must be a whole number, got {text!r}") from None


def _planes(array: Array) -> Response:
    """(H, W, C) -> C planes of float32."""
    return _binary(array.astype("<f4").transpose(2, 0, 1))


def _binary(array: Array) -> Response:
    return Response(array.tobytes(), media_type="application/octet-stream")
