"""The finished variants of a study, and the files that report on them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..evaluation import Grid, grid_markdown
from ..files import read_bytes
from .ablation import VariantFolder, VariantResult
from .ablation_table import ablation_document, ablation_grid, ablation_json, ablation_plot
from .variants import Variant


class Report(NamedTuple):
    """A study as a table, as numbers, and as files."""

    grid: Grid
    document: dict[str, Any]
    contents: dict[Path, bytes]
    """STUDY.md, .json, .svg and .png."""


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
        name = variant.name.lower().replace(" ", "-")
        if weights.exists():
            files.setdefault(folder / f"{name}.safetensors", read_bytes(weights))
    return files


def report_study(study: str, finished: Mapping[Variant, VariantResult], folder: Path) -> Report:
    """Report on the variants of a study, those of several seeds together."""
    results: dict[str, list[VariantResult]] = {}
    for variant, result in finished.items():
        results.setdefault(variant.name, []).append(result)
    grid = ablation_grid(study, results)
    text, curves = f"{grid_markdown(grid)}\n", {}
    if any(result.curve for result in finished.values()):  # the paper's stages have no scenes
        text += f"\n![EPE on held-out scenes against the pairs seen]({study}.svg)\n"
        curves = {kind: ablation_plot(study, results, kind) for kind in ("svg", "png")}
    contents = {"md": text.encode(), "json": ablation_json(study, results).encode(), **curves}
    files = {folder / f"{study}.{kind}": content for kind, content in contents.items()}
    return Report(grid, ablation_document(study, results), files)
