"""The command `dicl-flow`: commands that are read together share a file.

A command imports torch, which takes seconds, after all that may be missing or wrong is checked.
"""

import sys
from collections.abc import Callable
from functools import cache

import typer
from typer.main import get_command

from ..environ import purge_at_once
from ..errors import InputError
from . import (
    adapt,
    analyze,
    bulk,
    data,
    evaluate,
    flow,
    options,
    stabilize,
    track,
    train,
    video,
    web,
    weights,
)
from .command import Command, Group, describe, hidden_messages, quick_end

app = typer.Typer(
    name="dicl-flow",
    cls=Group,
    help="Optical flow by displacement-invariant matching cost learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
Commands = dict[str, type[options.Settings]]


def _add(group: typer.Typer, commands: Commands) -> None:
    for name, settings in commands.items():
        group.command(name, cls=Command)(options.as_function(settings))


_COMMANDS: Commands = {
    "demo": flow.Demo,
    "flow": flow.Flow,
    "video": video.Video,
    "track": track.Track,
    "explore": web.Explore,
    "show": flow.Show,
    "warp": flow.Warp,
    "interpolate": video.Interpolate,
    "stabilize": stabilize.Stabilize,
    "adapt": adapt.Adapt,
    "serve": web.Serve,
    "info": weights.Info,
    "convert": weights.Convert,
    "calibrate": weights.Calibrate,
    "export": weights.Export,
    "bench": evaluate.Bench,
    "train": train.Train,
    "reproduce": train.Reproduce,
    "table2": evaluate.Table2,
    "render": data.Render,
    "eval": evaluate.Evaluate,
    "submit": evaluate.Submit,
    "ablate": train.Ablate,
}
_BULK: Commands = {"run": bulk.Run, "list": bulk.ListClips, "verify": bulk.Verify}
_DATA: Commands = {"check": data.Check, "bench": data.LoadingSpeed}
_ANALYSES: Commands = {
    "peaks": analyze.Peaks,
    "kernels": analyze.Kernels,
    "pixel": analyze.Pixel,
    "layers": analyze.Layers,
    "compare": analyze.Compare,
    "levels": analyze.Levels,
}
_ABOUT_BULK = "Estimate millions of pairs: `bulk MANIFEST -o OUT` is short for `bulk run`."
_add(app, _COMMANDS)
for _name, _about, _commands, _class in (
    ("bulk", _ABOUT_BULK, _BULK, bulk.BulkGroup),
    ("data", "Check data sets, and measure how fast they load.", _DATA, Group),
    ("analyze", "Analyse the method, as the paper does.", _ANALYSES, Group),
):
    _group = typer.Typer(cls=_class, help=_about, no_args_is_help=True)
    _add(_group, _commands)
    app.add_typer(_group, name=_name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from .._version import __version__

        typer.echo(f"dicl-flow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def run() -> None:
    """Run the command line of this process, which ends with it."""
    if sys.argv[1:2] == ["bench"]:
        purge_at_once()  # it measures how memory grows
    with quick_end():
        main()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a user can fix is one sentence and exit code 2."""
    try:
        with hidden_messages():
            _command()(arguments)
    except (InputError, OSError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        sys.exit(2)


@cache
def _command() -> Callable[[list[str] | None], None]:
    """Every command with its options, made once: that takes a twentieth of a second."""
    return get_command(app)
