"""The command `dicl-flow`: one file per command, heavy imports inside the functions."""

import os
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
    bulk_list,
    bulk_verify,
    calibrate,
    compare,
    convert,
    data,
    data_bench,
    demo,
    eval,
    explore,
    export,
    flow,
    info,
    interpolate,
    kernels,
    layers,
    levels,
    options,
    peaks,
    pixel,
    render,
    reproduce,
    serve,
    show,
    submit,
    table2,
    train,
    video,
    warp,
)
from .command import Command, Group
from .flags import as_flags
from .messages import hidden_messages
from .starting import keep_freed_memory, quick_end, share_cores

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
app.command("demo")(demo.demo)
app.command("flow")(flow.flow)
app.command("video")(video.video)
app.command("explore")(explore.explore)
bulk.bulk_app.command("list")(bulk_list.list_clips)
bulk.bulk_app.command("verify")(bulk_verify.verify)
app.add_typer(bulk.bulk_app, name="bulk")
app.command("show")(show.show)
app.command("warp")(warp.warp)
app.command("interpolate")(interpolate.interpolate)
app.command("serve")(serve.serve)
app.command("info")(info.info)
app.command("convert")(convert.convert)
app.command("calibrate")(calibrate.calibrate)
app.command("export")(export.export)
app.command("bench")(bench.bench)
app.command("train")(train.train)
app.command("reproduce")(reproduce.reproduce)
app.command("table2")(table2.table2)
app.command("render")(render.render)
app.command("eval")(eval.evaluate)
app.command("submit")(submit.submit)
app.command("ablate")(ablate.ablate)
data.data_app.command("bench")(data_bench.bench)
app.add_typer(data.data_app, name="data")
analyze.analyze_app.command("peaks")(peaks.peaks)
analyze.analyze_app.command("kernels")(kernels.kernels)
analyze.analyze_app.command("pixel")(pixel.pixel)
analyze.analyze_app.command("layers")(layers.layers)
analyze.analyze_app.command("compare")(compare.compare)
analyze.analyze_app.command("levels")(levels.levels)
app.add_typer(analyze.analyze_app, name="analyze")
for group in (app, bulk.bulk_app, data.data_app, analyze.analyze_app):
    for registered in group.registered_commands:
        registered.cls = Command


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
            warnings.showwarning = options.print_warning
            _command()(arguments)
    except (InputError, OSError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        sys.exit(2)


@cache
def _command() -> Callable[[list[str] | None], None]:
    """Every command with its options, made once: that takes a twentieth of a second."""
    return get_command(app)


def describe(error: Exception) -> str:
    """Return one line: our message with options for parameters, or the system's and its file."""
    if isinstance(error, OSError) and error.strerror:
        name = error.filename2 or error.filename  # of two: the new name of a file
        return f"{os.fsdecode(name)}: {error.strerror}" if name else error.strerror
    return as_flags(" ".join(str(error).split()))
