"""The command `dicl-flow`: commands that are read together share a file.

Heavy imports are inside the functions.
"""

import sys
import warnings
from collections.abc import Callable
from functools import cache

import typer
from typer.main import get_command

from ..errors import InputError
from . import (
    ablate,
    analyze,
    bench,
    bulk,
    data,
    evaluate,
    flow,
    interpolate,
    options,
    train,
    video,
    web,
    weights,
)
from .command import Command, Group
from .messages import describe, hidden_messages, print_warning
from .process import keep_freed_memory, quick_end, share_cores

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
Commands = dict[str, type[options.Settings] | Callable[..., None]]


def _add(group: typer.Typer, commands: Commands) -> None:
    for name, command in commands.items():
        function = options.as_function(command) if isinstance(command, type) else command
        group.command(name, cls=Command)(function)


def _add_group(name: str, about: str, commands: Commands, cls: type[Group] = Group) -> None:
    group = typer.Typer(cls=cls, help=about, no_args_is_help=True)
    _add(group, commands)
    app.add_typer(group, name=name)


_COMMANDS: Commands = {
    "demo": flow.Demo,
    "flow": flow.Flow,
    "video": video.Video,
    "explore": web.Explore,
    "show": flow.Show,
    "warp": flow.Warp,
    "interpolate": interpolate.Interpolate,
    "serve": web.Serve,
    "info": weights.info,
    "convert": weights.Convert,
    "calibrate": weights.Calibrate,
    "export": weights.Export,
    "bench": bench.Bench,
    "train": train.Train,
    "reproduce": train.Reproduce,
    "table2": evaluate.Table2,
    "render": data.Render,
    "eval": evaluate.Evaluate,
    "submit": evaluate.Submit,
    "ablate": ablate.Ablate,
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
_add(app, _COMMANDS)
_add_group(
    "bulk",
    "Estimate millions of pairs: `dicl-flow bulk MANIFEST -o OUT` is `bulk run`.",
    _BULK,
    bulk.BulkGroup,
)
_add_group("data", "Check data sets, and measure how fast they load.", _DATA)
_add_group("analyze", "Analyse the method, as the paper does.", _ANALYSES)


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
    if sys.argv[1:2] != ["bench"]:  # it measures how memory grows
        keep_freed_memory()
    share_cores()
    with quick_end():
        main()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a user can fix is one sentence and exit code 2."""
    try:
        with warnings.catch_warnings(), hidden_messages():
            warnings.showwarning = print_warning
            _command()(arguments)
    except (InputError, OSError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        sys.exit(2)


@cache
def _command() -> Callable[[list[str] | None], None]:
    """Every command with its options, made once: that takes a twentieth of a second."""
    return get_command(app)
