"""The commands under `analyze`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..errors import InputError
from . import options
from .inputs_outputs import (
    check_outputs,
    check_weights,
    files_of,
    find_photos,
    find_weights,
    refuse_inputs,
)
from .printing import parse_size

if TYPE_CHECKING:
    from ..data import FlowPair, FlowSample
    from ..files import Array

Output = Annotated[Path, Option("--output", "-o", metavar="DIR", help="Folder to write to.")]
Pair = Annotated[
    tuple[Path, Path] | None, Option(metavar="IMAGE1 IMAGE2", help="The frames to look at.")
]
Truth = Annotated[Path | None, Option(help="Flow file with the truth of --pair.")]
Limit = Annotated[int | None, Option(min=1, help="At most this many pairs of each data set.")]


class Peaks(options.Settings):
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

    output: Output
    weights: options.ManyWeights = None
    pair: Pair = None
    truth: Truth = None
    data: options.Data = None
    limit: Limit = None
    max_size: options.MaxSize = None
    device: options.Device = "auto"
    precision: options.Precision = "auto"

    def __call__(self) -> None:
        pairs = _find_pairs(self.pair, self.truth, self.data, self.limit)
        weights = find_weights(self.weights)

        from ..evaluation.table import PUBLISHED_PEAKS
        from ..lab.analyses import draw_peaks, find_peaks
        from ..lab.volumes import open_networks
        from ..pictures.figures import draw_figure

        draw_figure(1, 1)  # complain now if there is no matplotlib
        _check_folder(self.output, "peaks", [*files_of(pairs), *weights])
        networks = open_networks(weights, self.device, self.precision)
        found = find_peaks(networks, self.track(pairs, "pairs"))
        summary = {name: peak.summary() for name, peak in found.items()}
        document = {"pairs": [p.name for p in pairs], "found": summary, "paper": PUBLISHED_PEAKS}
        arrays = {f"histogram: {name}": peak.histogram for name, peak in found.items()}
        written = _write(self.output, "peaks", document, draw_peaks(found), arrays)
        _report_lines(self, summary, written)


class Kernels(options.Settings):
    """Draw the kernels of the DAP layers, and how displacements support or suppress each other.

    Printed for each level: the mean weight of a kernel's own displacement, of its neighbours
    (near) and of those more than 3 away (far), the share of near weights that are positive and
    the share of far ones that are negative.

    Examples:

      dicl-flow analyze kernels -o kernels
    """

    output: Output
    weights: options.Weights = None
    device: options.Device = "auto"

    def __call__(self) -> None:
        check_weights([self.weights])

        from ..lab.analyses import (
            draw_kernels,
            projection_kernels,
            summarize_kernel,
            weight_by_distance,
        )
        from ..lab.volumes import open_networks

        _check_folder(self.output, "kernels", [self.weights])
        ((name, network),) = open_networks([self.weights], self.device).items()
        found = projection_kernels(name, network)
        levels = {f"stride {stride}": kernel for stride, kernel in found.items()}
        summary = {level: summarize_kernel(kernel) for level, kernel in levels.items()}
        curves = {level: weight_by_distance(kernel) for level, kernel in levels.items()}
        document = {"weights": name, "levels": summary, "mean_weight_by_distance": curves}
        written = _write(self.output, "kernels", document, draw_kernels(name, found), levels)
        _report_lines(self, summary, written)


class Pixel(options.Settings):
    """Draw the probabilities of one pixel at each level; yellow lines cross at the truth.

    Printed for each level: the most probable displacement and its probability, the next best
    probability, and the displacement that would be correct given the coarser levels, in cells of
    that level (at stride 8, a cell is 8 pixels of the frame).

    PWC-Net and VCN with a learned matcher: the probabilities are a softmax of its scores, which
    these networks do not compute themselves.

    Examples:

      dicl-flow analyze pixel 300 200 --pair one.png two.png --truth flow.flo -o pixel

      dicl-flow analyze pixel 300 200 -w dot.safetensors -w dicl.safetensors -o pixel
    """

    x: int = Argument(..., help="Column of frame 1, from 0.")
    y: int = Argument(..., help="Row of frame 1, from 0.")
    output: Output
    weights: options.ManyWeights = None
    pair: Pair = None
    truth: Truth = None
    data: options.Data = None
    number: int = Option(1, min=1, help="Which pair of the data.")
    max_size: options.MaxSize = None
    device: options.Device = "auto"
    precision: options.Precision = "auto"

    def __call__(self) -> None:
        pairs = _find_pairs(self.pair, self.truth, self.data, None)
        weights = find_weights(self.weights)
        if self.number > len(pairs):
            raise InputError(f"--number {self.number}: there are {len(pairs)} pairs")

        from ..lab.analyses import draw_pixel, read_pixel
        from ..lab.volumes import open_networks

        pair, x, y = pairs[self.number - 1], self.x, self.y
        _check_folder(self.output, "pixel", [*files_of([pair]), *weights])
        found = read_pixel(open_networks(weights, self.device, self.precision), pair, x, y)
        summary = {
            name: {f"stride {m.stride}": m.summary() for m in maps} for name, maps in found.items()
        }
        levels = {f"{name}, stride {m.stride}": m for name, maps in found.items() for m in maps}
        arrays = {name: level.probability for name, level in levels.items()}
        document = {"pair": pair.name, "pixel": [x, y], "found": summary}
        written = _write(self.output, "pixel", document, draw_pixel(found, pair, x, y), arrays)
        lines = {name: str(level) for name, level in levels.items()}
        self.report({**(document if self.as_json else lines), "written": written})


class Layers(options.Settings):
    """Compare the cost of layers: a 4-D convolution, VCN's separable one, the matching net's.

    The formulas of the paper's table 1, those of layers of equal width, and the memory and time
    that were measured.

    Examples:

      dicl-flow analyze layers --channels 64 --device cuda -o layers
    """

    output: Output
    channels: int = Option(32, min=2, help="K, the channels of both frames; even.")
    size: str = Option("96x64", help="WIDTHxHEIGHT of the features.")
    radius: int = Option(3, min=1, help="The largest displacement, in px.")
    device: options.Device = "auto"

    def __call__(self) -> None:
        from dataclasses import asdict

        from ..estimation.compute import choose_device
        from ..evaluation import grid_markdown
        from ..lab.layers import WHY, VolumeShape, draw_layers, layer_grids, measure_layers

        if self.channels % 2:
            raise InputError(
                f"--channels counts those of two frames, so it is even; got {self.channels}"
            )
        _check_folder(self.output, "layers", [])
        size = parse_size("--size", self.size)
        volume = VolumeShape(self.channels, 2 * self.radius + 1, *size)
        costs = measure_layers(volume, choose_device(self.device))
        grids, figure = layer_grids(volume, costs), draw_layers(volume, costs)
        layers = [asdict(cost) for cost in costs]
        document = {"volume": asdict(volume), "layers": layers, "why": WHY}
        table = "\n\n".join(map(grid_markdown, grids)) + "\n"
        written = _write(self.output, "layers", document, figure, table=table)
        self.report_grids(document, written, grids)


class Compare(options.ComputeSettings):
    """Draw several methods on the same pairs: estimates, error maps, EPE in the corner.

    NAME=PATH is a flow file, or a folder with DATA/PAIR.flo or PAIR.flo for each pair (or .png,
    .pfm …), as other methods write them and as eval --keep does.

    Examples:

      dicl-flow analyze compare rendered dis --data kitti15=KITTI2015 --limit 5 -o sheets

      dicl-flow analyze compare rendered raft=raft/kitti --data kitti15=KITTI2015 -o sheets
    """

    methods: list[str] = Argument(
        ...,
        metavar="METHOD",
        help="Weights, a baseline (dis), or flow files of another method: NAME=PATH.",
    )
    output: Output
    pair: Pair = None
    truth: Truth = None
    data: options.Data = None
    limit: Limit = None
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        from ..evaluation import BASELINES, pool
        from ..files import encode_image, write_files
        from ..lab.compare import find_flows

        check_outputs(folders=[self.output])
        pairs = _find_pairs(self.pair, self.truth, self.data, self.limit)
        sheets = {pair.name: self.output / f"{_file_name(pair.name)}.png" for pair in pairs}
        numbers = self.output / "compare.json"
        found = [find_flows(method, pairs) or method for method in self.methods]
        networks = [method for method in found if isinstance(method, str)]
        of_others = [flows for flows in found if not isinstance(flows, str)]
        given = [file for flows in of_others for file in flows.files.values()]
        refuse_inputs([*sheets.values(), numbers], [*files_of(pairs), *self.methods, *given])
        check_weights(name for name in networks if name not in BASELINES)

        from ..lab.compare import compare, open_methods

        methods = open_methods(found, **self.compute)
        self.output.mkdir(parents=True, exist_ok=True)
        scores: dict[str, dict[str, Any]] = {name: {} for name in methods}
        for pair in self.track(pairs, "pairs"):
            comparison = compare(pair, methods)
            sheet = sheets[pair.name]
            write_files({sheet: encode_image(sheet, comparison.sheet)})
            for name, score in comparison.scores.items():
                scores[name][pair.name] = score
        totals = {name: pool(by_pair.values()).values for name, by_pair in scores.items()}
        by_pair = {n: {p: s.values for p, s in known.items()} for n, known in scores.items()}
        document = json.dumps({"totals": totals, "pairs": by_pair}, indent=1) + "\n"
        write_files({numbers: document.encode()})
        _report_lines(self, totals, [*sheets.values(), numbers])


def _file_name(pair: str) -> str:
    return pair.replace("/", "-").replace(":", "-")


class Levels(options.Settings):
    """Show what each level contributes: the error of its matched and refined flow, by motion.

    A level that does not lower the error of the one before it adds nothing; one that gives all
    its probability to "no displacement" has not learned to match.

    Examples:

      dicl-flow analyze levels --rendered PHOTOS -o levels

      dicl-flow analyze levels --data sintel-clean=Sintel -w old.safetensors -w rendered -o levels
    """

    output: Output
    weights: options.ManyWeights = None
    pair: Pair = None
    truth: Truth = None
    data: options.Data = None
    limit: Limit = None
    rendered: str | None = Option(
        None, metavar="PHOTOS", help="Rendered scenes instead: photographs, or 'procedural'."
    )
    scenes: int = Option(16, "--scenes", "-n", min=1, help="How many scenes.")
    size: str = Option("1024x640", help="WIDTHxHEIGHT of a scene.")
    seed: int = Option(1000, min=0, help="The same seed gives the same scenes.")
    max_size: options.MaxSize = None
    device: options.Device = "auto"
    precision: options.Precision = "auto"

    def __call__(self) -> None:
        pairs = self._find_pairs_with_truth()
        weights = find_weights(self.weights)
        _check_folder(self.output, "levels", [*files_of(pairs), *weights])
        frame = parse_size("--size", self.size)
        photos = find_photos(self.rendered) if self.rendered else None

        from ..data import read_sample
        from ..estimation.compute import choose_device
        from ..lab.analyses import draw_levels, find_level_errors, level_grid
        from ..lab.volumes import open_networks
        from ..pictures.figures import draw_figure
        from ..render import held_out_renderer

        draw_figure(1, 1)  # complain now if there is no matplotlib
        what: dict[str, Any] = {"pairs": [p.name for p in pairs]}
        samples: Iterable[FlowSample] = map(read_sample, self.track(pairs, "pairs"))
        if self.rendered:
            what = {"photographs": self.rendered, "scenes": self.scenes}
            what |= {"size": self.size, "seed": self.seed}
            renderer = held_out_renderer(photos, frame, choose_device(self.device), seed=self.seed)
            numbers = self.track(range(self.scenes), "scenes")
            samples = (renderer.render(1, number).to_samples()[0] for number in numbers)
        found = find_level_errors(open_networks(weights, self.device, self.precision), samples)
        document = {**what, "found": {name: errors.summary() for name, errors in found.items()}}
        written = _write(self.output, "levels", document, draw_levels(found))
        self.report_grids(document, written, [level_grid(*item) for item in found.items()])

    def _find_pairs_with_truth(self) -> "list[FlowPair]":
        """Return the pairs to measure errors on; none for rendered scenes."""
        if self.rendered:
            if self.pair or self.data:
                raise InputError("--rendered excludes --pair and --data")
            return []
        found = _find_pairs(self.pair, self.truth, self.data, self.limit)
        pairs = [pair for pair in found if pair.truth]
        if not pairs:
            raise InputError("none of these pairs has a truth to measure errors against")
        return pairs


def _find_pairs(
    pair: tuple[Path, Path] | None, truth: Path | None, data: list[str] | None, limit: int | None
) -> "list[FlowPair]":
    """Return the pairs of --pair or --data, else the packaged ones, those with truth first."""
    from dataclasses import replace

    from ..data import FlowPair, demo_pairs, list_pairs, parse_data_argument
    from ..files import check_file

    if truth is not None and pair is None:
        raise InputError("--truth is the flow of --pair IMAGE1 IMAGE2; give those as well")
    if pair is not None and data:
        raise InputError("--pair and --data exclude each other")
    if pair is not None:
        for file in filter(None, (*pair, truth)):
            check_file(file)
        return [FlowPair(pair[0].stem, *pair, truth)]
    if not data:
        return sorted(demo_pairs(), key=lambda p: p.truth is None)
    sets = {name: list_pairs(name, root) for name, root in map(parse_data_argument, data)}
    return [
        replace(item, name=f"{name}/{item.name}")
        for name, pairs in sets.items()
        for item in pairs[:limit]
    ]


def _check_folder(folder: Path, name: str, inputs: Iterable[Path | str | None]) -> None:
    """Refuse, before any work, a folder that cannot be written to, and outputs that are inputs."""
    check_outputs(folders=[folder])
    refuse_inputs([folder / f"{name}.{kind}" for kind in ("json", "npz", "png", "md")], inputs)


def _write(
    folder: Path,
    name: str,
    document: Any,
    figure: Any,
    arrays: "Mapping[str, Array] | None" = None,
    table: str = "",
) -> list[Path]:
    """Write NAME.json and NAME.png, NAME.npz where there are arrays, NAME.md where a table."""
    from ..files import encode_arrays, write_files
    from ..pictures.figures import encode_figure

    contents = {"json": (json.dumps(document, indent=1) + "\n").encode()}
    if arrays:
        contents["npz"] = encode_arrays(arrays)
    contents["png"] = encode_figure(figure)
    if table:
        contents["md"] = table.encode()
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / f"{name}.{kind}": content for kind, content in contents.items()}
    write_files(written)
    return list(written)


def _report_lines(
    settings: options.Settings, summary: Mapping[str, Mapping[str, Any]], written: list[Path]
) -> None:
    """Print a line for each entry, or JSON for machines."""
    lines = {name: _line(values) for name, values in summary.items()}
    settings.report({**(summary if settings.as_json else lines), "written": written})


def _line(values: Mapping[str, Any]) -> str:
    texts = {k: f"{v:.4g}" if isinstance(v, float) else f"{v}" for k, v in values.items()}
    return ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in texts.items())
