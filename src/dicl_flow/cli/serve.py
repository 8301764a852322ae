"""The command `serve`."""

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from . import options
from .computing import estimates
from .explore import demo_clip


@estimates
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DICL_FLOW_TOKEN",
            help="Requests must have this token; made and printed if HOST is not loopback.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name by which the server is called; repeatable."),
    ] = None,
    max_size: Annotated[
        float, typer.Option(metavar="MEGAPIXELS", help="Refuse larger frames.")
    ] = 16.0,
    max_upload: Annotated[float, typer.Option(metavar="MIB", help="Size of two images.")] = 32.0,
    max_video: Annotated[float, typer.Option(metavar="MIB", help="Size of a video.")] = 512.0,
    queue: Annotated[int, typer.Option(help="Requests in progress; others are refused.")] = 64,
    batch: Annotated[int, typer.Option(help="Pairs of one size estimated together.")] = 8,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time to send, to estimate and to read.")
    ] = 60.0,
    jobs: Annotated[int, typer.Option(help="Videos that wait or are estimated.")] = 8,
    keep: Annotated[float, typer.Option(metavar="MINUTES", help="Keep videos this long.")] = 60.0,
    disk: Annotated[float, typer.Option(metavar="GIB", help="Disk space of all videos.")] = 4.0,
    weights: options.Weights = None,
    quality: options.Quality = "normal",
    full_size: options.FullSize = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Answer HTTP requests with flow until Ctrl-C.

    The address /docs of the server describes what it answers; / is the page of dicl-flow explore.

    Examples:

      dicl-flow serve

      curl -F image1=@a.png -F image2=@b.png -o flow.flo http://127.0.0.1:8000/flow

      dicl-flow serve --host 0.0.0.0 --port 9000 --device cuda
    """
    from ..errors import InputError
    from ..files import set_max_size
    from ..web import check_installed
    from ..weights import resolve

    resolve(weights)  # a missing file is named before torch is imported, which takes seconds
    check_installed()
    set_max_size(max_size)

    from ..web.limits import Limits
    from ..web.security import choose_token, is_loopback

    limits = Limits(
        queue=queue,
        batch=batch,
        max_upload=int(max_upload * 2**20),
        max_video=int(max_video * 2**20),
        timeout=timeout,
        jobs=jobs,
        keep=60 * keep,
        disk=int(disk * 2**30),
    )
    if quiet and token is None and not is_loopback(host):
        raise InputError("--quiet would hide the token that is made for --host; give --token")
    token = choose_token(host, token)

    from ..estimation.estimator import load
    from ..lab.volumes import has_scores
    from ..web.app import create_app
    from ..web.exploration import Exploration, open_explored
    from ..web.explorer import explorer_pages
    from ..web.listening import run_server
    from ..web.service import FlowService

    estimator = load(weights, quality=quality, full_size=full_size, **how)

    def announce(address: str) -> None:
        summary = {
            "written": [],
            "address": address,
            **({"token": token} if token else {}),
            "device": str(estimator.device),
            "backend": estimator.backend,
            "precision": estimator.precision,
        }
        options.report(summary, quiet=quiet, as_json=as_json)

    service, names = FlowService(estimator, limits), [host, *(allow_host or ())]
    with ExitStack() as stack:
        pages = []
        if has_scores(estimator):  # otherwise there is nothing to look inside
            networks = open_explored(
                [] if weights is None else [weights], how["device"], how["precision"]
            )
            exploration = Exploration(networks, demo_clip())
            stack.callback(exploration.close)
            pages = explorer_pages(exploration)
        app = create_app(service, token=token, allowed_hosts=names, pages=pages)
        run_server(app, host, port, limits, announce)
