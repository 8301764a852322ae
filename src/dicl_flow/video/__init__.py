"""The flow of whole videos: frames in, flows through a list of writers, in constant memory."""

from .checkpoint import Checkpoint
from .encoding import ENCODERS, PictureVideo
from .flows import FrameFlow, estimate_flows
from .frames import Frame, Moment, Selection
from .pictures import PANELS, flow_colors, parse_panels
from .run import run
from .sources import Source, open_source, stamp
from .statistics import StatisticsTable
from .threads import Behind, ahead
from .writers import FlowFiles, FlowStack, Writer, refuse_one_name

__all__ = [
    "ENCODERS",
    "PANELS",
    "Behind",
    "Checkpoint",
    "FlowFiles",
    "FlowStack",
    "Frame",
    "FrameFlow",
    "Moment",
    "PictureVideo",
    "Selection",
    "Source",
    "StatisticsTable",
    "Writer",
    "ahead",
    "estimate_flows",
    "flow_colors",
    "open_source",
    "parse_panels",
    "refuse_one_name",
    "run",
    "stamp",
]
