"""The command `analyze kernels`."""

from . import analyze, options
from .findings import check_findings, report, write_findings


def kernels(
    output: analyze.Output,
    weights: options.Weights = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Draw the kernels of the DAP layers, and how displacements support or suppress each other.

    Printed for each level: the mean weight of a kernel's own displacement, of its neighbours
    (near) and of those more than 3 away (far), the share of near weights that are positive and
    the share of far ones that are negative.

    Examples:

      dicl-flow analyze kernels -o kernels
    """
    analyze.find_weights([weights] if weights else None)

    from ..lab.analyses import (
        draw_kernels,
        projection_kernels,
        summarize_kernel,
        weight_by_distance,
    )
    from ..lab.volumes import open_networks

    check_findings(output, "kernels", [weights])
    ((name, estimator),) = open_networks([weights], device).items()
    found = projection_kernels(name, estimator)
    summary = {f"stride {stride}": summarize_kernel(k) for stride, k in found.items()}
    curves = {f"stride {stride}": weight_by_distance(k) for stride, k in found.items()}
    document = {"weights": name, "levels": summary, "mean_weight_by_distance": curves}
    arrays = {f"stride {stride}": kernel for stride, kernel in found.items()}
    written = write_findings(output, "kernels", document, draw_kernels(name, found), arrays)
    report(summary, written, quiet=quiet, as_json=as_json)
