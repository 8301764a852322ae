"""The command `analyze compare`."""

from typing import Annotated, Any

import typer

from . import analyze, options
from .computing import estimates
from .findings import report
from .outputs import check_outputs, files_of, refuse_inputs


@estimates
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD",
            help="Weights, a baseline (dis), or flow files of another method: NAME=PATH.",
        ),
    ],
    output: analyze.Output,
    pair: analyze.Pair = None,
    truth: analyze.Truth = None,
    data: options.Data = None,
    limit: analyze.Limit = None,
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    **how: Any,
) -> None:
    """Draw several methods on the same pairs: estimates, error maps, EPE in the corner.

    NAME=PATH is a flow file, or a folder with DATA/PAIR.flo or PAIR.flo for each pair (or .png,
    .pfm …), as other methods write them and as eval --keep does.

    Examples:

      dicl-flow analyze compare rendered dis --data kitti15=KITTI2015 --limit 5 -o sheets

      dicl-flow analyze compare rendered raft=raft/kitti --data kitti15=KITTI2015 -o sheets
    """
    import json

    from ..evaluation import BASELINES, pool
    from ..files import encode_image, write_files
    from ..lab.compare import find_flows
    from ..weights import resolve

    check_outputs(folders=[output])
    pairs = analyze.find_pairs(pair, truth, data, limit)
    sheets = {item.name: output / f"{_file_name(item.name)}.png" for item in pairs}
    numbers = output / "compare.json"
    found = [find_flows(method, pairs) or method for method in methods]
    given = [path for flows in found if not isinstance(flows, str) for path in flows.files.values()]
    refuse_inputs([*sheets.values(), numbers], [*files_of(pairs), *methods, *given])
    for name in found:
        if isinstance(name, str) and name not in BASELINES:
            resolve(name)  # a missing file is named before torch is imported

    from ..lab.compare import compare as compare_pair
    from ..lab.compare import open_methods

    opened = open_methods(found, **how)
    output.mkdir(parents=True, exist_ok=True)
    scores: dict[str, dict[str, Any]] = {name: {} for name in opened}
    for item in options.track(pairs, "pairs", quiet=quiet):
        comparison = compare_pair(item, opened)
        path = sheets[item.name]
        write_files({path: encode_image(path, comparison.sheet)})
        for name, score in comparison.scores.items():
            scores[name][item.name] = score
    totals = {name: pool(by_pair.values()).values for name, by_pair in scores.items()}
    by_pair = {n: {p: score.values for p, score in known.items()} for n, known in scores.items()}
    document = json.dumps({"totals": totals, "pairs": by_pair}, indent=1) + "\n"
    write_files({numbers: document.encode()})
    report(totals, [*sheets.values(), numbers], quiet=quiet, as_json=as_json)


def _file_name(pair: str) -> str:
    return pair.replace("/", "-").replace(":", "-")
