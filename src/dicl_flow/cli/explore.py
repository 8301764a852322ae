"""The command `explore`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import analyze, options
from .input_files import read_frames

if TYPE_CHECKING:
    from ..web.exploration_clips import Clip


def explore(
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGE1 IMAGE2 | VIDEO | FOLDER",
            help="Two frames, a video or a folder of frames; without it, the packaged demo.",
        ),
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Flow file with the truth of IMAGE1 IMAGE2.")
    ] = None,
    weights: analyze.ManyWeights = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8017,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address of the page.")
    ] = False,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Look inside an estimate in the browser: layers, matches, and the beliefs of every level.

    The server answers only programs of this machine, until Ctrl-C. Up to four weights are
    compared side by side.

    Examples:

      dicl-flow explore

      dicl-flow explore frame1.png frame2.png --truth flow.flo

      dicl-flow explore clip.mp4 -w dot.safetensors -w dicl.safetensors
    """
    from functools import partial

    from ..web import check_installed

    open_clip = _check_inputs(inputs or [], truth)
    analyze.find_weights(weights)
    check_installed()

    from ..web.app import create_app
    from ..web.exploration import Exploration, View, open_explored
    from ..web.explorer import explorer_pages
    from ..web.limits import Limits
    from ..web.listening import run_server
    from ..web.security import choose_token
    from ..web.service import FlowService

    token = choose_token(host, None)
    clip = open_clip()
    networks = open_explored(weights or [], device, precision)
    exploration = Exploration(networks, clip)
    first = next(iter(networks.values()))
    limits = Limits(batch=1, timeout=600, max_upload=2**28)
    service = FlowService(first, limits)
    service.call(partial(exploration.estimate, View("0", 0, 0)))  # while the browser starts
    app = create_app(service, token=token, pages=explorer_pages(exploration))

    def announce(address: str) -> None:
        page = f"{address}?token={token}" if token else address
        summary = {
            "written": [],
            "address": page,
            "weights": list(networks),
            "device": str(first.device),
            "backend": first.backend,
            "precision": first.precision,
        }
        options.report(summary, quiet=quiet, as_json=as_json)
        if not no_browser:
            _open_browser(page)

    try:
        run_server(app, host, port, limits, announce)
    finally:
        exploration.close()


def _check_inputs(inputs: list[Path], truth: Path | None) -> "Callable[[], Clip]":
    """Read two images; a video or a folder is only opened by the result, since it needs torch."""
    from ..data.video_frames import check_source
    from ..errors import InputError
    from ..files import read_flow
    from ..web.exploration_clips import clip_of_arrays, clip_of_source

    if len(inputs) > 2:
        raise InputError(f"explore takes two images, a video or a folder; got {len(inputs)} files")
    if truth is not None and len(inputs) != 2:
        raise InputError("--truth is the flow of IMAGE1 IMAGE2; give those as well")
    if not inputs:
        return demo_clip
    if len(inputs) == 1:
        check_source(str(inputs[0]))
        return lambda: clip_of_source(str(inputs[0]))
    image1, image2 = read_frames(*inputs)
    true_flow = None if truth is None else read_flow(truth)
    clip = clip_of_arrays(inputs[0].name, image1, image2, true_flow)
    return lambda: clip


def demo_clip() -> "Clip":
    """The packaged frames."""
    from ..data import demo_pairs
    from ..web.exploration_clips import Clip, pair_of_files

    return Clip("demo", [pair_of_files(p.name, p.image1, p.image2, p.truth) for p in demo_pairs()])


def _open_browser(address: str) -> None:
    """Open the page, unless there is no display: a browser of the terminal cannot show it."""
    import os
    import sys
    import webbrowser

    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)
