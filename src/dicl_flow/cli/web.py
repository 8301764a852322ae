"""Commands that open a port: `explore` and `serve`."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ..errors import InputError
from . import options
from .inputs_outputs import check_weights, read_frames
from .options import flag, optional

if TYPE_CHECKING:
    from ..web.clips import Clip

Host = Annotated[str, Option(help="Address to listen on; any but loopback needs a token.")]
Port = Annotated[int, Option(min=0, max=65535, help="Port; 0: a free one.")]


class Explore(options.Settings):
    """Look inside an estimate in the browser: layers, matches, probabilities of every level.

    The server answers only programs of this machine, until Ctrl-C. Up to four weights are
    compared side by side.

    Examples:
      dicl-flow explore
      dicl-flow explore frame1.png frame2.png --truth flow.flo
      dicl-flow explore clip.mp4 -w dot.safetensors -w dicl.safetensors
    """

    inputs: list[Path] | None = Argument(
        None,
        metavar="IMAGE1 IMAGE2 | VIDEO | FOLDER",
        help="Two frames, a video or a folder of frames; without it, the packaged demo.",
    )
    truth: Path | None = optional("Flow file with the truth of IMAGE1 IMAGE2.")
    weights: options.ManyWeights = None
    host: Host = "127.0.0.1"
    port: Port = 8017
    no_browser: bool = flag("--no-browser", "Only print the address of the page.")
    device: options.Device = "auto"
    precision: options.Precision = "auto"
    max_size: options.MaxSize = None
    fenced: options.Fenced = False

    def __call__(self) -> None:
        import webbrowser

        from ..web import check_installed

        open_clip = _check_inputs(self.inputs or [], self.truth)
        check_weights(*(self.weights or (None,)))
        check_installed()

        from ..web.app import create_app, run_server
        from ..web.explorer import Exploration, View, explorer_pages, open_explored
        from ..web.limits import Limits, choose_token
        from ..web.service import FlowService

        token = choose_token(self.host, None)
        clip = open_clip()
        networks = open_explored(self.weights or [], self.device, self.precision)
        exploration = Exploration(networks, clip)
        first = next(iter(networks.values()))
        limits = Limits(batch=1, timeout=600, max_upload=2**28)
        service = FlowService(first, limits)
        service.call(partial(exploration.estimate, View("0", 0, 0)))  # while the browser starts
        app = create_app(service, token=token, pages=explorer_pages(exploration))

        def announce(address: str) -> None:
            page = f"{address}?token={token}" if token else address
            used = {"weights": list(networks), **options.compute_summary(first)}
            self.report({"written": [], "address": page, **used})
            # without a display, a browser would be one of the terminal, which cannot show it
            displays = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
            if not self.no_browser and (sys.platform != "linux" or any(displays)):
                webbrowser.open(page)

        try:
            run_server(app, self.host, self.port, limits, announce)
        finally:
            exploration.close()


def _check_inputs(inputs: list[Path], truth: Path | None) -> "Callable[[], Clip]":
    """Read two images; a video or a folder is only opened by the result, since it needs torch."""
    from ..data.frames import check_source
    from ..files import read_flow
    from ..web.clips import clip_of_arrays, clip_of_source

    if len(inputs) > 2:
        raise InputError(f"explore takes two images, a video or a folder; got {len(inputs)} files")
    if truth is not None and len(inputs) != 2:
        raise InputError("--truth is the flow of IMAGE1 IMAGE2; give those as well")
    if not inputs:
        return _demo_clip
    if len(inputs) == 1:
        check_source(str(inputs[0]))
        return lambda: clip_of_source(str(inputs[0]))
    image1, image2 = read_frames(*inputs)
    true_flow = None if truth is None else read_flow(truth)
    clip = clip_of_arrays(inputs[0].name, image1, image2, true_flow)
    return lambda: clip


def _demo_clip() -> "Clip":
    from ..data import demo_pairs
    from ..web.clips import Clip, pair_of_files

    return Clip("demo", [pair_of_files(p.name, p.image1, p.image2, p.truth) for p in demo_pairs()])


class Serve(options.ComputeSettings):
    """Answer HTTP requests with flow until Ctrl-C.

    The address /docs of the server describes what it answers; / is the page of dicl-flow explore.

    Examples:
      dicl-flow serve
      curl -F image1=@a.png -F image2=@b.png -o flow.flo http://127.0.0.1:8000/flow
      dicl-flow serve --host 0.0.0.0 --port 9000 --device cuda
    """

    host: Host = "127.0.0.1"
    port: Port = 8000
    token: str | None = optional(
        "Requests must have this token; made and printed if HOST is not loopback.",
        envvar="DICL_FLOW_TOKEN",
    )
    allow_host: list[str] | None = optional("Name the server goes by; repeatable.", metavar="NAME")
    max_size: float = Option(16.0, metavar="MEGAPIXELS", help="Refuse larger frames.")
    max_upload: float = Option(32.0, metavar="MIB", help="Size of two images.")
    max_video: float = Option(512.0, metavar="MIB", help="Size of a video.")
    queue: int = Option(64, help="Requests in progress; others are refused.")
    batch: int | None = optional(
        "Pairs of one size estimated together; default: 8 on a GPU, 1 on a CPU.", metavar="N"
    )
    timeout: float = Option(60.0, metavar="SECONDS", help="Time to send, to estimate and to read.")
    jobs: int = Option(8, help="Videos that wait or are estimated.")
    keep: float = Option(60.0, metavar="MINUTES", help="Keep videos this long.")
    disk: float = Option(4.0, metavar="GIB", help="Disk space of all videos.")
    weights: options.Weights = None
    quality: options.Quality = "normal"
    full_size: options.FullSize = False

    def __call__(self) -> None:
        from ..files import set_max_size
        from ..web import check_installed

        check_weights(self.weights)
        check_installed()
        set_max_size(self.max_size)

        from ..web.limits import Limits, choose_token, is_loopback

        limits = Limits(
            **self.chosen("queue", "batch", "timeout", "jobs"),
            max_upload=int(self.max_upload * 2**20),
            max_video=int(self.max_video * 2**20),
            keep=60 * self.keep,
            disk=int(self.disk * 2**30),
        )
        if self.quiet and self.token is None and not is_loopback(self.host):
            raise InputError("--quiet would hide the token that is made for --host; give --token")
        token = choose_token(self.host, self.token)

        from ..fence import can_fence, describe_fence, put_up_fence
        from ..lab.volumes import has_scores
        from ..web.app import create_app, run_server
        from ..web.explorer import Exploration, explorer_pages, open_explored
        from ..web.service import FlowService

        if can_fence():
            put_up_fence(requests=1)  # what strangers send cannot reach what others send
        estimator = self.load()

        def announce(address: str) -> None:
            values = {"address": address, **({"token": token} if token else {})}
            values |= options.compute_summary(estimator) | describe_fence()
            self.report({"written": [], **values})

        service, names = FlowService(estimator, limits), [self.host, *(self.allow_host or ())]
        with ExitStack() as stack:
            pages = []
            if has_scores(estimator):  # otherwise there is nothing to look inside
                weights = [] if self.weights is None else [self.weights]
                networks = open_explored(weights, self.device, self.precision)
                exploration = Exploration(networks, _demo_clip())
                stack.callback(exploration.close)
                pages = explorer_pages(exploration)
            app = create_app(service, token=token, allowed_hosts=names, pages=pages)
            run_server(app, self.host, self.port, limits, announce)
