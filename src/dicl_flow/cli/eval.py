from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from . import options
from .outputs import check_outputs, files_of, refuse_inputs

if TYPE_CHECKING:
    from ..data import FlowPair
    from ..evaluation import Method, Prediction, Result
    from ..inputs import Array
    from ..result import FlowResult

    Predictor: TypeAlias = Callable[[str, Iterable[FlowPair]], Iterator[Prediction]]
    """Data set name and pairs -> predictions."""


def evaluate(
    data: Annotated[
        list[str], typer.Option("--data", "-d", metavar="NAME=PATH", help="Data set; repeatable.")
    ],
    weights: options.Weights = None,
    baseline: Annotated[
        str | None, typer.Option(help="Score this as well, or alone without --weights: dis.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    worst: Annotated[
        tuple[int, Path] | None,
        typer.Option(metavar="N DIR", help="Draw the N worst pairs of each method and data set."),
    ] = None,
    sparsification: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw how well the confidence finds errors.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep predictions: METHOD/DATA/PAIR.flo.")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Score kept predictions, predict nothing.")
    ] = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    backend: options.Backend = "auto",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
) -> None:
    """Score a network on data sets, beside the published numbers.

    EPE and EPE images, 1/3/5 px, Fl-all, WAUC, EPE by speed and by visibility, AUSE of the
    confidence. Pairs without truth are judged by warping, which is not an endpoint error.

    Examples:

      dicl-flow eval --data sintel-clean=Sintel --data kitti15=KITTI --weights my.safetensors

      dicl-flow eval --data kitti15=KITTI --baseline dis --worst 10 pictures --json scores.json
    """
    from rich.console import Console

    from ..evaluation import draw_sparsification, print_results, to_json, to_markdown
    from ..files import write_files

    count, pictures = worst or (0, None)
    _check(weights, baseline, keep, predictions, worst)
    wanted = check_outputs(
        [json_file, markdown, sparsification],
        folders=[keep, pictures],
        inputs=[predictions, weights],
    )
    if sparsification is not None:
        _check_plot(sparsification, baseline is not None and weights is None)
    sets = _list_data(data)
    refuse_inputs(wanted, (file for pairs in sets.values() for file in files_of(pairs)))
    how = (device, precision, backend)
    predictors = _kept(predictions) if predictions else _methods(weights, baseline, how, keep)
    results = []
    for name, pairs in sets.items():
        for method, predictor in predictors.items():
            results.append(_score(name, pairs, method, predictor, quiet))
            if pictures is not None:
                _draw_worst(results[-1], pairs, predictor, count, pictures)
    texts = {json_file: to_json, markdown: to_markdown}
    contents = {path: text(results).encode() for path, text in texts.items() if path is not None}
    if sparsification is not None:
        contents[sparsification] = draw_sparsification(results)
    write_files(contents)
    if not quiet:
        print_results(results, Console())


def _check(
    weights: str | None,
    baseline: str | None,
    keep: Path | None,
    predictions: Path | None,
    worst: tuple[int, Path] | None,
) -> None:
    from ..errors import InputError, unknown_name
    from ..evaluation import BASELINES

    if baseline is not None and baseline not in BASELINES:
        raise unknown_name("baseline", baseline, BASELINES)
    if predictions is not None and (weights or baseline or keep):
        raise InputError("--predictions predicts nothing; leave out --weights, --baseline, --keep")
    if worst is not None and worst[0] < 1:
        raise InputError(f"--worst takes a number of pairs from 1 up and a folder, got {worst[0]}")


def _check_plot(path: Path, baseline_alone: bool) -> None:
    from ..errors import InputError
    from ..render.statistics import plotting

    plotting()
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: the curves are drawn as .png")
    if baseline_alone:
        raise InputError("--sparsification needs a confidence, which the baseline has not; add -w")


def _list_data(arguments: list[str]) -> "dict[str, list[FlowPair]]":
    from ..data import list_pairs, parse_data_argument
    from ..errors import InputError

    sets: dict[str, list[FlowPair]] = {}
    for name, root in map(parse_data_argument, arguments):
        if name in sets:
            raise InputError(f"--data names {name} twice; evaluate one after the other")
        sets[name] = list_pairs(name, root)
    return sets


def _methods(
    weights: str | None, baseline: str | None, how: tuple[str, str, str], keep: Path | None
) -> "dict[str, Predictor]":
    from ..errors import InputError
    from ..evaluation import BASELINES
    from ..weights import resolve

    methods: dict[str, Method] = {}
    if weights or not baseline:
        resolve(weights)  # a missing file is named before torch is imported
        from ..estimator import load

        estimator = load(weights, *how)
        methods[resolve(weights).stem] = lambda *frames: _flow_and_confidence(estimator(*frames))
    if baseline in methods:
        raise InputError(f"{weights} has the name of the baseline; rename the file")
    if baseline:
        methods[baseline] = BASELINES[baseline]()
    return {name: _predictor(method, keep and keep / name) for name, method in methods.items()}


def _flow_and_confidence(result: "FlowResult") -> "tuple[Array, Array]":
    return result.flow, result.confidence


def _predictor(method: "Method", keep: Path | None) -> "Predictor":
    from ..evaluation import predict

    return lambda data, pairs: predict(pairs, method, keep and keep / _folder_name(data))


def _kept(folder: Path) -> "dict[str, Predictor]":
    """A predictor for each method that `--keep` left in `folder`."""
    from ..errors import InputError

    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} of predictions that --keep has written")
    methods = sorted(path for path in folder.iterdir() if path.is_dir())
    if not methods:
        raise InputError(f"{folder} holds no predictions; expected METHOD/DATA/PAIR.flo")
    return {path.name: _reader(path) for path in methods}


def _reader(folder: Path) -> "Predictor":
    from ..evaluation import read_predictions

    return lambda data, pairs: read_predictions(pairs, folder / _folder_name(data))


def _folder_name(data: str) -> str:
    return data.replace(":", "-")  # some systems allow no colon in file names


def _score(
    data: str, pairs: "list[FlowPair]", method: str, predictor: "Predictor", quiet: bool
) -> "Result":
    from ..data import data_set
    from ..evaluation import Result, score_predictions

    watched = options.track(pairs, f"{method} on {data}", quiet=quiet)
    scores = score_predictions(predictor(data, watched))
    return Result(data, data_set(data).label, method, scores)


def _draw_worst(
    result: "Result",
    pairs: "list[FlowPair]",
    predictor: "Predictor",
    count: int,
    pictures: Path,
) -> None:
    """Predict the worst pairs again, rather than hold all predictions until they are known."""
    from ..evaluation import draw_prediction
    from ..files import encode_image, write_files

    by_name = {pair.name: pair for pair in pairs}
    worst = [by_name[name] for name in result.worst(count)]
    folder = pictures / result.method / _folder_name(result.data)
    folder.mkdir(parents=True, exist_ok=True)
    for rank, (pair, flow, *_) in enumerate(predictor(result.data, worst), start=1):
        path = folder / f"{rank:02d}-{pair.name.replace('/', '-')}.png"
        write_files({path: encode_image(path, draw_prediction(pair, flow))})
