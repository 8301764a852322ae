"""The command `bulk verify`."""

from typing import Annotated

import typer

from . import options
from .bulk import devices_of


def verify(
    output: Annotated[str, typer.Argument(metavar="OUT", help="The output of a run.")],
    samples: Annotated[int, typer.Option(min=0, help="Flows to compute again.")] = 3,
    weights: options.Weights = None,
    device: options.Device = "auto",
    memory_limit: options.MemoryLimit = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Read an output again: check all files, and compute some flows again.

    What is wrong is listed, and the exit code is 2.
    """
    from dataclasses import asdict

    from ..bulk.job import Job, read_settings, sha256_of
    from ..bulk.storage import open_storage
    from ..errors import InputError
    from ..weights import resolve

    storage = open_storage(output)
    settings, about = read_settings(storage, output)
    if samples and sha256_of(resolve(weights)) != settings.weights:
        raise InputError(
            f"{output} was computed with other weights; give those with the sha256 "
            f"{settings.weights}, or --samples 0"
        )
    from ..bulk.verify import check_files, check_samples

    job = Job(settings, output, about["root"], weights, options.in_bytes(memory_limit))
    report = check_files(storage, about["segments"])
    if samples:
        check_samples(storage, job, devices_of(device)[0], samples, report)
    found = {"written": [], "missing": report.missing, **asdict(report)}
    problems = found.pop("problems")
    found["problems"] = problems if as_json else len(problems)
    options.report(found, quiet=quiet, as_json=as_json)
    if problems or report.missing:
        typer.echo("\n".join(f"problem: {problem}" for problem in problems[:100]), err=True)
        if report.missing:
            typer.echo(f"{report.missing} segments are missing; the run is not finished", err=True)
        raise typer.Exit(2)
