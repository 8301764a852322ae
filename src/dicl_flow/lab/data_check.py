"""Opens the pairs of a data set: what they hold, a sheet of some, and which cannot be read."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ..data import FlowPair, Survey
from ..errors import InputError
from ..files import Array
from ..pictures.sheets import contact_sheet, thumbnail
from .sample_sheet import SAMPLE_COLUMNS, sample_label, sample_row


class Check(NamedTuple):
    """What `check_pairs` has found."""

    survey: Survey
    sheet: Array | None
    """A contact sheet, if any pair was to be drawn and could be read."""
    broken: Sequence[Exception]
    """One for each pair that cannot be read."""


def spread(pairs: Sequence[FlowPair], count: int) -> list[FlowPair]:
    """Return `count` pairs (or all, when there are fewer) at even distances."""
    step = max(1.0, len(pairs) / count)
    return [pairs[int(index * step)] for index in range(min(count, len(pairs)))]


def check_pairs(pairs: Iterable[FlowPair], drawn: Collection[FlowPair]) -> Check:
    """Read pairs one by one; those among `drawn` are put on the sheet."""
    survey, broken, rows, labels = Survey(), [], [], []
    for pair in pairs:
        try:
            sample = survey.add(pair)
        except (InputError, OSError) as error:
            broken.append(error)
            continue
        if pair in drawn:
            rows.append([thumbnail(picture) for picture in sample_row(sample)])
            labels.append(sample_label(pair.name, sample))
    sheet = contact_sheet(rows, labels, SAMPLE_COLUMNS) if rows else None
    return Check(survey, sheet, broken)
