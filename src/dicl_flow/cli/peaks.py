"""The command `analyze peaks`."""

from . import analyze, options
from .findings import check_findings, report, write_findings
from .outputs import files_of


def peaks(
    output: analyze.Output,
    weights: analyze.ManyWeights = None,
    pair: analyze.Pair = None,
    truth: analyze.Truth = None,
    data: options.Data = None,
    limit: analyze.Limit = None,
    max_size: options.MaxSize = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Show how distinct the best match is: the distribution of d_peak, before and after DAP.

    d_peak is the highest minus the second highest of a pixel's 49 probabilities at the finest
    level. With truth also: the error of the flow before the context net, read off as the most
    probable displacement (winner takes all) or as the expected one (soft-argmin).

    PWC-Net and VCN with a learned matcher: the 81 probabilities are a softmax of its scores, which
    these networks do not compute themselves.

    Examples:

      dicl-flow analyze peaks --data sintel-clean=Sintel -o peaks

      dicl-flow analyze peaks -w with.safetensors -w without.safetensors -o peaks
    """
    pairs = analyze.find_pairs(pair, truth, data, limit)
    analyze.find_weights(weights)

    from ..evaluation.published import PUBLISHED_PEAKS
    from ..lab.analyses import draw_peaks, find_peaks
    from ..lab.volumes import open_networks
    from ..pictures.figures import draw_figure

    draw_figure(1, 1)  # complain now if there is no matplotlib
    check_findings(output, "peaks", [*files_of(pairs), *(weights or [])])
    estimators = open_networks(weights or [None], device, precision)
    found = find_peaks(estimators, options.track(pairs, "pairs", quiet=quiet))
    summary = {name: peak.summary() for name, peak in found.items()}
    document = {"pairs": [p.name for p in pairs], "found": summary, "paper": PUBLISHED_PEAKS}
    arrays = {f"histogram: {name}": peak.histogram for name, peak in found.items()}
    written = write_findings(output, "peaks", document, draw_peaks(found), arrays)
    report(summary, written, quiet=quiet, as_json=as_json)
