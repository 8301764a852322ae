"""The variants of an ablation, one recipe with a few changed settings; their files.

Does not import torch, so that a mistake is reported at once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config import HOST_RECORDS, TrainConfig, to_toml
from ..errors import InputError, unknown_name
from ..files import read_bytes, write_files
from ..training import RunFolder, read_recipe
from ..training.chain import TARGETS, Stage, open_stages, read_stages
from ..weights import resolve

HELD_OUT = "held-out"  # the name of the held-out scenes among the data sets
Settings = Mapping[str, Any]


def _dicl(matcher: str, *, projection: bool = False) -> Settings:
    return {"host": "dicl", "matcher": matcher, "projection": projection}


_MATCHERS = {"dot product": "dot", "cosine": "cosine", "MLP": "mlp", "reduced DICL": "reduced"}
_METRICS = {name: _dicl(matcher) for name, matcher in {**_MATCHERS, "DICL": "dicl"}.items()}
_WITH_DAP = _dicl("dicl", projection=True)
_MATCHING = {**_dicl("dicl"), "loss.matching": [1.0, 1.0, 1.0, 0.0, 0.0]}
STUDIES: Mapping[str, Mapping[str, Settings]] = {
    "metrics": _METRICS,  # the paper's table 3: all without DAP
    "projection": {"DICL without DAP": _dicl("dicl"), "DICL": _WITH_DAP},  # table 2
    "hosts": {  # table 4
        "PWC-Net": {"host": "pwcnet", "matcher": None},
        "PWC-Net + DICL": {"host": "pwcnet", "matcher": "dicl"},
        "VCN": {"host": "vcn", "matcher": None},
        "VCN + DICL": {"host": "vcn", "matcher": "dicl"},
    },
    "figures": {**_METRICS, "DICL with DAP": _WITH_DAP},  # figures 2 and 4
    # table 3, DAP, and the matching loss, which the paper does not have
    "claims": {**_METRICS, "DICL with DAP": _WITH_DAP, "DICL with matching loss": _MATCHING},
}
"""By study and variant: the changed settings, of the model if the key names no other table."""
PAPER_STAGES: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("metrics", "projection"), TARGETS["things"]),
    # table 4 has no column after Things; the first phase, without context nets, is that of DICL
    "hosts": ("chairs-1", "chairs-2"),
}
"""By study: the published stages that its variants are trained in."""
# settings that do not change what is trained
_IRRELEVANT = dict[str, Any](name="", workers=0, save_every=1, log_every=1, picture_every=0)


class Start(NamedTuple):
    """The weights that all variants of a study start from."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Variant:
    """One network of a study, with one seed."""

    name: str
    stages: tuple[TrainConfig, ...]  # each starts from the weights of the one before
    start: Start | None = None  # what the first starts from; None: random weights

    @property
    def config(self) -> TrainConfig:
        """The last stage."""
        return self.stages[-1]

    @property
    def file_name(self) -> str:
        """Its name in names of files: dot-product."""
        return self.name.lower().replace(" ", "-")

    @property
    def folder(self) -> str:
        """A folder name that two variants share only if their training is the same."""
        model = self.config.model
        matcher = model.matcher or model.host_record.own_matcher or "own"
        words = [model.host, matcher, *["dap"] * model.projection]
        text = "".join(to_toml(replace(stage, **_IRRELEVANT)) for stage in self.stages)
        text += self.start.sha256 if self.start else ""
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{'-'.join(words)}-seed{self.config.seed}-{digest[:8]}"

    @property
    def pairs(self) -> int:
        """The number of training pairs, of all stages together."""
        return sum(stage.steps * stage.batch for stage in self.stages)


def recipe_variants(
    study: str,
    recipe: str | None,
    changes: list[str],
    seeds: Iterable[int],
    *,
    pairs: int | None = None,
    initial: str | None = None,
    names: Sequence[str] = (),
) -> list[Variant]:
    """The variants of a study, seed by seed, of one recipe; default: that of the study.

    `pairs` replaces the number of training pairs. Recipes that freeze parts start from the
    packaged weights if no others are given. `names` chooses variants; none: all.
    """

    def read(settings: list[str]) -> tuple[TrainConfig, ...]:
        name = recipe or ("figures" if study == "figures" else "ablation")
        stage = read_recipe(name, [*changes, *settings])
        return (replace(stage, steps=-(-pairs // stage.batch)) if pairs is not None else stage,)

    _check_changes(study, changes)
    return _variants(study, names, seeds, read, _find_start(read([])[0], initial))


def paper_variants(
    study: str, changes: list[str], seeds: Iterable[int], names: Sequence[str] = ()
) -> list[Variant]:
    """As `recipe_variants`, trained in the published stages; `changes` as in `read_stages`."""
    if study not in PAPER_STAGES:
        raise unknown_name("study of the paper", study, PAPER_STAGES)
    _check_changes(study, changes)

    def read(settings: list[str]) -> tuple[TrainConfig, ...]:
        # the projection is added by the stage that adds it, unless the variant has none
        kept = [change for change in settings if change != "model.projection=true"]
        return read_stages(PAPER_STAGES[study], [*changes, *kept])

    return _variants(study, names, seeds, read)


def _variants(
    study: str,
    names: Sequence[str],
    seeds: Iterable[int],
    read: Callable[[list[str]], tuple[TrainConfig, ...]],
    start: Start | None = None,
) -> list[Variant]:
    """`read` returns the stages with the changes that make them those of a variant."""
    known = STUDIES[study]
    for name in names:
        if name not in known:
            raise unknown_name("variant", name, known)
    return [
        Variant(name, read([*_as_changes(settings), f"seed={seed}"]), start)
        for seed in seeds
        for name, settings in known.items()
        if name in names or not names
    ]


def _check_changes(study: str, changes: Iterable[str]) -> None:
    """Refuse an unknown study, and changes of what its variants differ in."""
    if study not in STUDIES:
        raise unknown_name("study", study, STUDIES)
    of_study = {_full_key(key) for settings in STUDIES[study].values() for key in settings}
    fixed = of_study | {"model.host", "model.matcher", "model.projection"}
    for change in changes:
        key = change.partition("=")[0].rpartition(":")[2]
        if key in fixed:
            raise InputError(f"variants differ in {key}; leave out `changes=['{change}']`")


def _as_changes(settings: Settings) -> list[str]:
    """The settings of a variant as changes of a recipe; the host's own matcher needs none."""
    own = settings["matcher"] in (None, HOST_RECORDS[settings["host"]].own_matcher)
    changed = {key: value for key, value in settings.items() if not (own and key == "matcher")}
    return [f"{_full_key(key)}={str(value).lower()}" for key, value in changed.items()]


def _full_key(key: str) -> str:
    """The key of a setting in a recipe."""
    return key if "." in key else f"model.{key}"


def _find_start(base: TrainConfig, initial: str | None) -> Start | None:
    """The weights that all variants start from; required if the recipe wants some."""
    if initial is None and not base.optimizer.frozen:
        if base.start or base.needs_weights:
            raise InputError(
                f"{base.name!r} is meant to start from trained weights: give `initial=WEIGHTS`; to "
                f"start from random ones: `changes=['start=']` and "
                f"`changes=['needs_weights=false']`"
            )
        return None
    path = resolve(initial)
    return Start(path, hashlib.sha256(read_bytes(path)).hexdigest())


@dataclass(frozen=True)
class DataScore:
    """The score of a variant on one data set."""

    num_pairs: int
    metrics: Mapping[str, float]
    pairs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By name of the pair; by number of the held-out scene, of which the EPE alone."""


@dataclass(frozen=True)
class VariantResult:
    """The results of a trained variant."""

    config: str
    seed: int
    trained_pairs: int
    device: str
    code: str
    """The first digits of the hash of the package's source files."""
    parameters: int
    pairs_per_second: float
    curve: Mapping[str, float]  # held-out EPE by the number of pairs seen
    scores: Mapping[str, DataScore]  # by name of the data set
    peaks: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """By data set, before and after DAP: the summary of `lab.analyses.Peaks`."""


class VariantFolder:
    """The files of one variant; it is finished when the results exist."""

    def __init__(self, root: Path, variant: Variant) -> None:
        self.variant = variant
        self.run = RunFolder(root / variant.folder)
        self.results = self.run.path / "results.json"
        self.curve = self.run.path / "curve.json"

    def stages(self) -> list[Stage]:
        """The stages of the paper's protocol, each with its own run folder."""
        return open_stages(self.variant.stages, self.run.path)

    def weights_for(self, data: str) -> Path:
        """Return the weights to score on a data set: on Chairs, those trained on Chairs alone."""
        if data.startswith("chairs"):
            for stage in reversed(self.stages()):
                if all(entry.name.startswith("chairs") for entry in stage.config.data):
                    is_last = stage.config == self.variant.config
                    return self.run.weights if is_last else stage.weights
        return self.run.weights

    def read(self) -> VariantResult | None:
        """Return the results, if training has finished."""
        if not self.results.exists():
            return None
        try:
            values = json.loads(self.results.read_text())
            scores = {name: DataScore(**score) for name, score in values.pop("scores").items()}
            return VariantResult(**values, scores=scores)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{self.results} is damaged or of another version; remove it"
            ) from None

    def write(self, result: VariantResult, weights: bytes | None = None) -> None:
        """Write the results and, if given, the weights; remove the checkpoint."""
        contents = {self.results: (json.dumps(asdict(result), indent=1) + "\n").encode()}
        write_files(contents if weights is None else {**contents, self.run.weights: weights})
        self.run.checkpoint.unlink(missing_ok=True)


def finished_variants(variants: Iterable[Variant], folder: Path) -> dict[Variant, VariantResult]:
    """Return the results of the variants that are trained; none at all is an error."""
    read = {variant: VariantFolder(folder, variant).read() for variant in variants}
    finished = {variant: result for variant, result in read.items() if result is not None}
    if not finished:
        raise InputError(
            f"{folder} holds no finished variant of this study, recipe, seed and number of "
            f"pairs; train them with the data of the recipe, such as `roots={{'rendered': PHOTOS}}`"
        )
    return finished


def small_files(variants: Iterable[Variant], folder: Path) -> dict[Path, bytes]:
    """Return the weights of the first seed of each variant as dot-product.safetensors and so on."""
    files: dict[Path, bytes] = {}
    for variant in variants:
        weights = VariantFolder(folder, variant).run.weights
        if weights.exists():
            name = f"{variant.file_name}.safetensors"
            files.setdefault(folder / name, read_bytes(weights))
    return files
