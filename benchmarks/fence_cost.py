"""What the fence adds to the decoding of an image and of a frame of a video, in milliseconds.

    python benchmarks/fence_cost.py

Both ways in turn, medians. `one request` is a decoder that ends after a request, as those of
`serve`; `many` are those of --fenced. Decoders are forked while others work: without a free core,
their time comes on top.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import cv2
import numpy as np

from dicl_flow.data.timing import read_video_file, video_shots
from dicl_flow.fence import put_up_fence, take_down_fence
from dicl_flow.files import decode_image, encode_image

SIZES = ((640, 360), (1920, 1080))
ROUNDS, PAUSE = 40, 0.03  # seconds between images, in which a server estimates


def main() -> None:
    """Print a line for each size."""
    for width, height in SIZES:
        noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        frame = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
        with tempfile.TemporaryDirectory() as folder:
            clip = write_clip(Path(folder) / "x.mp4", frame)
            data = encode_image("x.png", frame)
            found = {"plain": (image_ms(data), frame_ms(clip))}
            for name, requests in (("one request", 1), ("many", 10**6)):
                put_up_fence(requests=requests)
                found[name] = (image_ms(data), frame_ms(clip))
                take_down_fence()
        for name, (image, picture) in found.items():
            print(f"{width}x{height} {name:12} PNG {image:6.2f} ms, frame {picture:6.2f} ms")


def image_ms(data: bytes) -> float:
    """The median time of an image."""
    return _median(lambda: decode_image(data, "x"), PAUSE)


def frame_ms(clip: Path) -> float:
    """The median time of a frame."""
    shots = video_shots(clip, read_video_file(clip).timing)
    return _median(lambda: next(shots).read(), 0)


def _median(call: Callable[[], object], pause: float) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        time.sleep(pause)
    return 1000 * median(times[5:])


def write_clip(path: Path, frame: np.ndarray) -> Path:
    """Write an H.264 clip of a frame that moves."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = *frame.shape[1::-1], "yuv420p"
        for step in range(ROUNDS + 1):
            picture = np.ascontiguousarray(np.roll(frame, 2 * step, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


if __name__ == "__main__":
    main()
