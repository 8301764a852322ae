from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from . import options
from .outputs import check_outputs, files_of, refuse_inputs

if TYPE_CHECKING:
    from ..data import FlowPair
    from ..estimation.estimator import FlowEstimator
    from ..evaluation import Method, Prediction, Result
    from ..files import Array

    Predictor: TypeAlias = Callable[[str, Iterable[FlowPair]], Iterator[Prediction]]
    """Data set name and pairs -> predictions."""


def evaluate(
    data: Annotated[
        list[str], typer.Option("--data", "-d", metavar="NAME=PATH", help="Data set; repeatable.")
    ],
    weights: options.Weights = None,
    baseline: Annotated[
        str | None, typer.Option(help="Also score this method; alone without --weights: dis.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Write all numbers to a file.")
    ] = None,
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
        Path | None, typer.Option(metavar="DIR", help="Score what --keep has written.")
    ] = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    backend: options.Backend = "auto",
    full_size: options.FullSize = False,
    quality: options.Quality = "normal",
    max_size: options.MaxSize = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Score a network on data sets, beside the published numbers.

    EPE and EPE images, 1/3/5 px, Fl-all, WAUC, EPE by speed and by visibility, AUSE of the
    confidence. Pairs without truth are judged by warping, which is not an endpoint error.

    Examples:

      dicl-flow eval --data sintel-clean=Sintel --data kitti15=KITTI --weights my.safetensors

      dicl-flow eval --data kitti15=KITTI --baseline dis --worst 10 pictures --save scores.json

      dicl-flow eval --data kitti15=KITTI --quality best
    """
    import json

    from rich.console import Console

    from ..evaluation import as_document, draw_sparsification, print_results, to_json, to_markdown
    from ..files import write_files

    count, pictures = worst or (0, None)
    _check(weights, baseline, keep, predictions, worst)
    wanted = check_outputs(
        [save, markdown, sparsification],
        folders=[keep, pictures],
        inputs=[predictions, weights],
    )
    if sparsification is not None:
        _check_plot(sparsification, baseline is not None and weights is None)
    sets = _list_data(data)
    refuse_inputs(wanted, (file for pairs in sets.values() for file in files_of(pairs)))
    how = (device, precision, backend)
    computed: dict[str, str] = {}  # how, by the size of the frames
    if predictions:
        predictors = _kept(predictions)
    else:
        more = {"quality": quality, "full_size": full_size}
        predictors = _methods(weights, baseline, how, keep, computed, more)
    results = []
    for name, pairs in sets.items():
        for method, predictor in predictors.items():
            results.append(_score(name, pairs, method, predictor, quiet))
            if pictures is not None:
                _draw_worst(results[-1], pairs, predictor, count, pictures)
    texts = {save: to_json(results, computed), markdown: to_markdown(results)}
    contents = {path: text.encode() for path, text in texts.items() if path is not None}
    if sparsification is not None:
        contents[sparsification] = draw_sparsification(results)
    write_files(contents)
    written = [*contents, *(path for path in (keep, pictures) if path is not None)]
    if as_json:
        typer.echo(json.dumps({**as_document(results, computed), "written": [*map(str, written)]}))
    elif not quiet:
        print_results(results, Console())
        for size, how_computed in computed.items():
            typer.echo(f"frames of {size} are computed {how_computed}")


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
    from ..pictures.figures import draw_figure

    draw_figure(1, 1)  # complain now if there is no matplotlib
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
    weights: str | None,
    baseline: str | None,
    how: tuple[str, str, str],
    keep: Path | None,
    computed: dict[str, str],
    more: dict[str, Any],
) -> "dict[str, Predictor]":
    """A predictor for each method; `computed` learns how the network sees frames."""
    from ..errors import InputError
    from ..evaluation import BASELINES
    from ..weights import resolve

    methods: dict[str, Method] = {}
    if weights or not baseline:
        name = resolve(weights).stem  # a missing file is named before torch is imported
        from ..estimation.estimator import load

        estimator = load(weights, *how, **more)
        quality = more["quality"]
        methods[name if quality == "normal" else f"{name}-{quality}"] = _noting(estimator, computed)
    if baseline in methods:
        raise InputError(f"{weights} has the name of the baseline; rename the file")
    if baseline:
        methods[baseline] = BASELINES[baseline]()
    return {name: _predictor(method, keep and keep / name) for name, method in methods.items()}


def _noting(estimator: "FlowEstimator", computed: dict[str, str]) -> "Method":
    """Estimate, and note for each size of frames how that is done."""
    from ..estimation.choices import explain_frame

    def method(image1: "Array", image2: "Array") -> "tuple[Array, Array]":
        result = estimator(image1, image2)
        height, width = result.flow.shape[:2]
        computed[f"{width}x{height}"] = explain_frame(estimator, (height, width)).value
        return result.flow, result.confidence

    return method


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
