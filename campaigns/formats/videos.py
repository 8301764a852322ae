"""Videos in several containers, decoded by PyAV."""

import io
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from dicl_flow.files import Array
from dicl_flow.video.frames import Selection, Source, capture, open_source

from ..mutations import extreme
from . import Format

_KINDS = {
    "mp4": ("libx264", "yuv420p"),
    "matroska": ("ffv1", "bgr0"),
    "avi": ("mpeg4", "yuv420p"),
    "mpeg": ("mpeg2video", "yuv420p"),
    "gif": ("gif", "rgb8"),
    "mov": ("mjpeg", "yuvj420p"),
    "webm": ("libvpx-vp9", "yuv420p"),
}


def _seeds() -> list[bytes]:
    return [_clip(container, *how) for container, how in _KINDS.items()]


def _clip(container: str, codec: str, pixels: str, frames: int = 4) -> bytes:
    import av

    buffer = io.BytesIO()
    dice = np.random.default_rng(0)
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 48, 32, pixels
        for _ in range(frames):
            image = dice.integers(0, 256, (32, 48, 3), np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode())
    return buffer.getvalue()


def _read(path: Path) -> list[Array]:
    """All frames, as a run with --on-error skip reads them."""
    return _images(open_source(str(path)))


def _read_opencv(path: Path) -> list[Array]:
    return _images(capture(str(path), live=False))


def _images(source: Source) -> list[Array]:
    frames = Selection(on_error="skip").frames(source)
    return [frame.image for frame in frames if frame.image is not None]


def _boxes(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Change numbers near the names of boxes and tags, where sizes, counts and rates are."""
    data = dice.choice(seeds)
    names = b"avcC stsz stsd stts tkhd mdhd mvhd stco strf avih strh idx1".split()
    names += b"\xe0 \xb0 \xba movi elst avc1 !\xf9".split()
    places = [data.find(name) for name in names if name in data]
    for _ in range(dice.choice((1, 1, 3))):
        place = (dice.choice(places) if places else 0) + dice.randrange(-4, 60)
        place, new = max(0, place), extreme(dice)
        data = data[:place] + new + data[place + len(new) :]
    return data


def _sound(data: bytes, result: list[Array]) -> str:
    wrong = [a for a in result if a.dtype != np.uint8 or a.ndim != 3 or a.shape[2] != 3]
    return f"not a frame: {wrong[0].dtype} {wrong[0].shape}" if wrong else ""


FORMATS = {
    "video": Format(".video", _seeds, _read, _boxes, _sound, count=2000, shortens=True),
    "video-opencv": Format(
        ".video", _seeds, _read_opencv, _boxes, _sound, count=2000, shortens=True
    ),
}
