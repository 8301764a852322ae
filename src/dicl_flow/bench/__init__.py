"""How fast the network is on this machine, and how near to what the machine could do."""

from .cases import Case, Result, measure
from .plot import encode_plot
from .table import HEADINGS, LEGEND, as_record, as_rows

__all__ = [
    "HEADINGS",
    "LEGEND",
    "Case",
    "Result",
    "as_record",
    "as_rows",
    "encode_plot",
    "measure",
]
