"""The commands under `analyze`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..errors import InputError, counted
from . import options
from .inputs_outputs import (
    check_matplotlib,
    check_outputs,
    check_weights,
    encode_json,
    files_of,
    find_photos,
    parse_roots,
    refuse_inputs,
)
from .options import optional, parse_size

if TYPE_CHECKING:
    from ..data import FlowPair, FlowSample
    from ..estimation.estimator import FlowEstimator
    from ..files import Array

Limit = Annotated[int | None, Option(min=1, help="At most this many pairs of each data set.")]


class Analysis(options.Settings):
    """The settings of an analysis, which writes a document, a figure and arrays into a folder."""

    output: Path = options.output("Folder to write to.", ..., "DIR")

    @property
    def name(self) -> str:
        """The name of the command and of its files."""
        return type(self).__name__.lower()

    def check_folder(self, inputs: Iterable[Path | str | None] = ()) -> None:
        """Refuse, before any work, a folder that cannot be written to, outputs that are inputs."""
        check_outputs(folders=[self.output])
        kinds = ("json", "npz", "png", "md")
        refuse_inputs([self.output / f"{self.name}.{kind}" for kind in kinds], inputs)

    def write(
        self,
        document: Any,
        figure: Any,
        arrays: "Mapping[str, Array] | None" = None,
        table: str = "",
    ) -> list[Path]:
        """Write NAME.json and NAME.png, NAME.npz where there are arrays, NAME.md where a table."""
        from ..files import encode_arrays, write_files
        from ..pictures.figures import encode_figure

        contents = {"json": encode_json(document)}
        if arrays:
            contents["npz"] = encode_arrays(arrays)
        contents["png"] = encode_figure(figure)
        if table:
            contents["md"] = table.encode()
        written = {self.output / f"{self.name}.{kind}": data for kind, data in contents.items()}
        write_files(written)
        return list(written)


class PairAnalysis(Analysis):
    """The settings of an analysis of pairs of frames."""

    pair: tuple[Path, Path] | None = optional("The frames to look at.", metavar="IMAGE1 IMAGE2")
    truth: Path | None = optional("Flow file with the truth of --pair.")
    data: options.Data = None
    max_size: options.MaxSize = None
    fenced: options.Fenced = False

    def find_pairs(self, limit: int | None = None) -> "list[FlowPair]":
        """Return the pairs of --pair or --data, else the packaged ones, those with truth first."""
        from ..data import FlowPair, demo_pairs, list_pairs
        from ..files import check_file

        if self.truth is not None and self.pair is None:
            raise InputError("--truth is the flow of --pair IMAGE1 IMAGE2; give those as well")
        if self.pair is not None and self.data:
            raise InputError("--pair and --data exclude each other")
        if self.pair is not None:
            for file in filter(None, (*self.pair, self.truth)):
                check_file(file)
            return [FlowPair(self.pair[0].stem, *self.pair, self.truth)]
        if not self.data:
            return sorted(demo_pairs(), key=lambda p: p.truth is None)
        return [
            replace(item, name=f"{name}/{item.name}")
            for name, root in parse_roots(self.data).items()
            for item in list_pairs(name, root)[:limit]
        ]


class NetworkAnalysis(PairAnalysis):
    """The settings of an analysis of one or several networks on pairs of frames."""

    weights: options.ManyWeights = None
    device: options.Device = "auto"
    precision: options.Precision = "auto"

    def check(self, pairs: "Iterable[FlowPair]") -> None:
        """Refuse missing weights, and outputs that cannot be written or are inputs."""
        check_weights(*(self.weights or (None,)))
        check_matplotlib()
        self.check_folder([*files_of(pairs), *(self.weights or ())])

    def networks(self) -> "dict[str, FlowEstimator]":
        """Open the networks, by the names of their weights."""
        from ..lab.volumes import open_networks

        return open_networks(self.weights or [None], self.device, self.precision)


class Peaks(NetworkAnalysis):
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

    limit: Limit = None

    def __call__(self) -> None:
        pairs = self.find_pairs(self.limit)
        self.check(pairs)

        from ..evaluation.table import PUBLISHED_PEAKS
        from ..lab.analyses import draw_peaks, find_peaks

        peaks = find_peaks(self.networks(), self.track(pairs, "pairs"))
        summary = {name: peak.summary() for name, peak in peaks.items()}
        document = {"pairs": [p.name for p in pairs], "found": summary, "paper": PUBLISHED_PEAKS}
        arrays = {f"histogram: {name}": peak.histogram for name, peak in peaks.items()}
        self.report({**summary, "written": self.write(document, draw_peaks(peaks), arrays)})


class Kernels(Analysis):
    """Draw the kernels of the DAP layers, and how displacements support or suppress each other.

    Printed for each level: the mean weight of a kernel's own displacement, of its neighbours
    (near) and of those more than 3 away (far), the share of near weights that are positive and
    the share of far ones that are negative.

    Examples:
      dicl-flow analyze kernels -o kernels
    """

    weights: options.Weights = None
    device: options.Device = "auto"

    def __call__(self) -> None:
        check_weights(self.weights)
        self.check_folder([self.weights])

        from ..lab import analyses
        from ..lab.volumes import open_networks

        ((name, network),) = open_networks([self.weights], self.device).items()
        kernels = analyses.projection_kernels(name, network)
        levels = {f"stride {stride}": kernel for stride, kernel in kernels.items()}
        summary = {level: analyses.summarize_kernel(kernel) for level, kernel in levels.items()}
        curves = {level: analyses.weight_by_distance(kernel) for level, kernel in levels.items()}
        document = {"weights": name, "levels": summary, "mean_weight_by_distance": curves}
        written = self.write(document, analyses.draw_kernels(name, kernels), levels)
        self.report({**summary, "written": written})


class Pixel(NetworkAnalysis):
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

    x: int = Argument(..., min=0, help="Column of frame 1, from 0.")
    y: int = Argument(..., min=0, help="Row of frame 1, from 0.")
    number: int = Option(1, min=1, help="Which pair of the data.")

    def __call__(self) -> None:
        from ..data.sample import check_inside, read_frames

        pairs = self.find_pairs()
        if self.number > len(pairs):
            raise InputError(f"--number {self.number}: the data has {counted(len(pairs), 'pair')}")
        pair, x, y = pairs[self.number - 1], self.x, self.y
        self.check([pair])
        check_inside(x, y, read_frames(pair)[0].shape[:2])

        from ..lab.analyses import draw_pixel, read_pixel

        found = read_pixel(self.networks(), pair, x, y)
        summary = {
            name: {f"stride {m.stride}": m.summary() for m in maps} for name, maps in found.items()
        }
        levels = {f"{name}, stride {m.stride}": m for name, maps in found.items() for m in maps}
        arrays = {name: level.probability for name, level in levels.items()}
        document = {"pair": pair.name, "pixel": [x, y], "found": summary}
        written = self.write(document, draw_pixel(found, pair, x, y), arrays)
        lines = {name: str(level) for name, level in levels.items()}
        self.report({**(document if self.as_json else lines), "written": written})


class Layers(Analysis):
    """Compare the cost of layers: a 4-D convolution, VCN's separable one, the matching net's.

    The formulas of the paper's table 1, those of layers of equal width, and the memory and time
    that were measured.

    Examples:
      dicl-flow analyze layers --channels 64 --device cuda -o layers
    """

    channels: int = Option(32, min=2, help="K, the channels of both frames; even.")
    size: str = Option("96x64", help="WIDTHxHEIGHT of the features.")
    radius: int = Option(3, min=1, help="The largest displacement, in px.")
    device: options.Device = "auto"

    def __call__(self) -> None:
        from ..estimation.compute import choose_device
        from ..evaluation import grid_markdown
        from ..lab.layers import WHY, VolumeShape, draw_layers, layer_grids, measure_layers

        if self.channels % 2:
            raise InputError(f"--channels is of both frames: must be even, got {self.channels}")
        self.check_folder()
        size = parse_size("--size", self.size)
        volume = VolumeShape(self.channels, 2 * self.radius + 1, *size)
        costs = measure_layers(volume, choose_device(self.device))
        grids = layer_grids(volume, costs)
        layers = [asdict(cost) for cost in costs]
        document = {"volume": asdict(volume), "layers": layers, "why": WHY}
        table = "\n\n".join(map(grid_markdown, grids)) + "\n"
        written = self.write(document, draw_layers(volume, costs), table=table)
        self.report_grids(document, written, grids)


class Compare(PairAnalysis, options.ComputeSettings):
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
    limit: Limit = None

    def __call__(self) -> None:
        from ..evaluation import BASELINES, pool
        from ..files import encode_image, write_files
        from ..lab.compare import find_flows, sheet_names

        check_outputs(folders=[self.output])
        pairs = self.find_pairs(self.limit)
        sheets = {pair: self.output / name for pair, name in sheet_names(pairs).items()}
        numbers = self.output / "compare.json"
        found = [find_flows(method, pairs) or method for method in self.methods]
        networks = [method for method in found if isinstance(method, str)]
        of_others = [flows for flows in found if not isinstance(flows, str)]
        files = [file for flows in of_others for file in flows.files.values()]
        refuse_inputs([*sheets.values(), numbers], [*files_of(pairs), *self.methods, *files])
        check_weights(*(name for name in networks if name not in BASELINES))

        from ..lab.compare import compare, open_methods

        methods = open_methods(found, **self.compute)
        scores: dict[str, dict[str, Any]] = {name: {} for name in methods}
        for pair in self.track(pairs, "pairs"):
            comparison = compare(pair, methods)
            sheet = sheets[pair.name]
            write_files({sheet: encode_image(sheet, comparison.sheet)})
            for name, score in comparison.scores.items():
                scores[name][pair.name] = score
        totals = {name: pool(by_pair.values()).values for name, by_pair in scores.items()}
        by_pair = {n: {p: s.values for p, s in known.items()} for n, known in scores.items()}
        write_files({numbers: encode_json({"totals": totals, "pairs": by_pair})})
        self.report({**totals, "written": [*sheets.values(), numbers]})


class Levels(NetworkAnalysis):
    """Show what each level contributes: the error of its matched and refined flow, by motion.

    A level that does not lower the error of the one before it adds nothing; one that gives all
    its probability to "no displacement" has not learned to match.

    Examples:
      dicl-flow analyze levels --rendered PHOTOS -o levels
      dicl-flow analyze levels --data sintel-clean=Sintel -w old.safetensors -w rendered -o levels
    """

    limit: Limit = None
    rendered: str | None = optional(
        "Rendered scenes instead: photographs, or 'procedural'.", metavar="PHOTOS"
    )
    scenes: int = Option(16, "--scenes", "-n", min=1, help="How many scenes.")
    size: str = Option("1024x640", help="WIDTHxHEIGHT of a scene.")
    seed: int = Option(1000, min=0, help="The same seed gives the same scenes.")

    def __call__(self) -> None:
        pairs = self._find_pairs_with_truth()
        self.check(pairs)
        frame = parse_size("--size", self.size)
        photos = find_photos(self.rendered) if self.rendered else None

        from ..data import read_sample
        from ..estimation.compute import choose_device
        from ..lab.analyses import draw_levels, find_level_errors, level_grid
        from ..render import held_out_renderer

        what: dict[str, Any] = {"pairs": [p.name for p in pairs]}
        samples: Iterable[FlowSample] = map(read_sample, self.track(pairs, "pairs"))
        if self.rendered:
            what = {"photographs": self.rendered, **self.chosen("scenes", "size", "seed")}
            renderer = held_out_renderer(photos, frame, choose_device(self.device), seed=self.seed)
            numbers = self.track(range(self.scenes), "scenes")
            samples = (renderer.render(1, number).to_samples()[0] for number in numbers)
        found = find_level_errors(self.networks(), samples)
        document = {**what, "found": {name: errors.summary() for name, errors in found.items()}}
        written = self.write(document, draw_levels(found))
        self.report_grids(document, written, [level_grid(*item) for item in found.items()])

    def _find_pairs_with_truth(self) -> "list[FlowPair]":
        """Return the pairs to measure errors on; none for rendered scenes."""
        if self.rendered:
            if self.pair or self.data:
                raise InputError("--rendered excludes --pair and --data")
            return []
        pairs = [pair for pair in self.find_pairs(self.limit) if pair.truth]
        if not pairs:
            raise InputError("none of these pairs has a truth to measure errors against")
        return pairs
