"""Uploaded clips of the explorer: two images, or a video in a temporary folder."""

from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from starlette.requests import Request

from .exploration_clips import Clip, clip_of_arrays, clip_of_upload
from .service import FlowService
from .uploads import check_frame, decode_frame, read_form, read_images, video_container

_FRAMES = ("image1", "image2")


async def read_pair(request: Request, service: FlowService, name: str) -> Clip:
    """Read the fields image1 and image2."""
    limits = service.limits
    with service.admission.enter() as hold:
        files = await read_images(
            request, _FRAMES, most=limits.max_upload, timeout=limits.timeout, hold=hold
        )
        for field, data in files.items():
            hold(check_frame(data, field))
        frames = [await service.aside(decode_frame, files[field], field) for field in _FRAMES]
    return clip_of_arrays(name, *frames)


async def read_video(request: Request, service: FlowService, name: str) -> Clip:
    """Read a form with one file, the video; it is removed with the clip."""
    limits, folder = service.limits, Path(mkdtemp(prefix="dicl-flow-"))
    remove = partial(rmtree, folder, ignore_errors=True)
    try:
        with service.admission.enter(), (folder / "video").open("wb") as file:
            most, timeout = limits.max_video, limits.timeout
            await read_form(request, lambda field: file.write, most=most, timeout=timeout)
        return await service.aside(_open_video, folder / "video", name, remove)
    except BaseException:
        remove()
        raise


def _open_video(path: Path, name: str, remove: "partial[None]") -> Clip:
    with path.open("rb") as file:
        container = video_container(file.read(32))
    return clip_of_upload(path, name, container, remove)
