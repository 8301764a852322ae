"""The explorer's page, and what it asks the server for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, TypeVar

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ..files import FLOW_SUFFIXES, Array, encode_flow, encode_image, to_uint8
from .exploration import Exploration, View
from .exploration_clips import Clip, clip_of_arrays, clip_of_upload
from .requests import read_form, read_frames, video_container
from .service import service_of

_STATIC = Path(__file__).with_name("static")
Result = TypeVar("Result")


def explorer_pages(exploration: Exploration) -> list[BaseRoute]:
    """Return the routes of the page and of what it asks for."""
    asked = _Asked(exploration)
    pair = "/explore/clips/{clip}/{pair:int}"
    return [
        Route("/", _page),
        Mount("/static", StaticFiles(directory=_STATIC)),
        Route("/explore/clips", asked.upload, methods=["POST"]),
        Route("/explore/clips/{clip}", asked.clip),
        Route(f"{pair}/frame{{number:int}}.png", asked.frame),
        Route(f"{pair}/estimate", asked.estimate),
        Route(f"{pair}/occlusion", asked.occlusion),
        Route(f"{pair}/truth", asked.truth),
        Route(f"{pair}/level", asked.level),
        Route(f"{pair}/beliefs", asked.beliefs),
        Route(f"{pair}/flow.{{suffix}}", asked.flow),
    ]


async def _page(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html")


class _Asked:
    """The answers. Arrays are sent as planes of little-endian float32."""

    def __init__(self, exploration: Exploration) -> None:
        self._exploration = exploration

    async def clip(self, request: Request) -> Response:
        """Send which pairs a clip has, and which networks there are."""
        return JSONResponse(self._exploration.summary(request.path_params["clip"]))

    async def frame(self, request: Request) -> Response:
        """Send a frame as PNG."""
        number = request.path_params["number"]
        if number not in (1, 2):
            raise HTTPException(404, "a pair has frame1.png and frame2.png")
        frames = await _aside(request, self._exploration.frames, *_place(request))
        png = await _aside(request, encode_image, "frame.png", to_uint8(frames[number - 1]))
        return Response(png, media_type="image/png")

    async def estimate(self, request: Request) -> Response:
        """Send three planes: the flow to the right, the flow down, the confidence."""
        found = await self._computed(request, "estimate", self._exploration.estimate)
        return _planes(np.dstack([found.flow, found.confidence]))

    async def occlusion(self, request: Request) -> Response:
        """Send a byte for each pixel: 1 where it is hidden in frame 2."""
        hidden = await self._computed(request, "occlusion", self._exploration.occlusion)
        return _binary(hidden.astype(np.uint8))

    async def truth(self, request: Request) -> Response:
        """Send two planes: the true flow."""
        return _planes(await _aside(request, self._exploration.truth, *_place(request)))

    async def level(self, request: Request) -> Response:
        """Send two planes: the flow of a level at the size of the frame."""
        stride, stage = _integer(request, "stride"), request.query_params.get("stage", "refined")
        found = await self._computed(request, "estimate", self._exploration.estimate)
        return _planes(await _aside(request, found.level, stride, stage))

    async def beliefs(self, request: Request) -> Response:
        """Send what each level believed about a pixel."""
        x, y = (_integer(request, name) for name in "xy")
        found = await self._computed(request, "estimate", self._exploration.estimate)
        return JSONResponse(found.beliefs(x, y))

    async def flow(self, request: Request) -> Response:
        """Send the flow as a file."""
        suffix = f".{request.path_params['suffix']}"
        if suffix not in FLOW_SUFFIXES:
            raise HTTPException(404, f"known flow files: {', '.join(FLOW_SUFFIXES)}")
        found = await self._computed(request, "estimate", self._exploration.estimate)
        data = await _aside(request, encode_flow, f"flow{suffix}", found.flow)
        headers = {"Content-Disposition": f'attachment; filename="flow{suffix}"'}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def upload(self, request: Request) -> Response:
        """Take two images, or a video with `?kind=video`, as a new clip."""
        name = Path(request.query_params.get("name", "")).name[:80] or "upload"
        is_video = request.query_params.get("kind") == "video"
        clip = await (_read_video if is_video else _read_pair)(request, name)
        return JSONResponse({"id": self._exploration.add(clip)}, 201)

    async def _computed(
        self, request: Request, what: str, compute: Callable[[View], Result]
    ) -> Result:
        """Compute in the thread of the estimator; what is known need not wait for its turn."""
        view, service = _view(request), service_of(request)
        known: Result | None = self._exploration.known(what, view)
        if known is not None:
            return known
        with service.admission.enter():
            await request.body()  # so that what is received next is the end of the connection
            return await service.wait(request, service.call(partial(compute, view)))


async def _read_pair(request: Request, name: str) -> Clip:
    """Read two uploaded images."""
    with service_of(request).admission.enter() as hold:
        frames = await read_frames(request, hold)
    return clip_of_arrays(name, *frames)


async def _read_video(request: Request, name: str) -> Clip:
    """Read a form with one file, the video; it is removed with the clip."""
    service, folder = service_of(request), Path(mkdtemp(prefix="dicl-flow-"))
    path, remove = folder / "video", partial(rmtree, folder, ignore_errors=True)
    try:
        with service.admission.enter(), path.open("wb") as file:
            await read_form(request, lambda field: file.write, service.limits.max_video)
        container = await service.aside(video_container, path)
        return await service.aside(clip_of_upload, path, name, container, remove)
    except BaseException:
        remove()
        raise


async def _aside(request: Request, function: Callable[..., Result], *arguments: Any) -> Result:
    return await service_of(request).aside(function, *arguments)


def _place(request: Request) -> tuple[str, int]:
    return request.path_params["clip"], request.path_params["pair"]


def _view(request: Request) -> View:
    return View(*_place(request), _integer(request, "network", "0"))


def _integer(request: Request, name: str, default: str = "") -> int:
    text = request.query_params.get(name, default)
    try:
        return int(text)
    except ValueError:
        raise HTTPException(400, f"{name} must be a whole number, got {text!r}") from None


def _planes(array: Array) -> Response:
    """(H, W, C) -> C planes of float32."""
    return _binary(array.astype("<f4").transpose(2, 0, 1))


def _binary(array: Array) -> Response:
    return Response(array.tobytes(), media_type="application/octet-stream")
