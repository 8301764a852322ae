"""Flow of whole videos: read frames, estimate flows, pass them to writers, in constant memory."""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from .checkpoint import Checkpoint, State
from .cuts import CUTS
from .encoding import CODINGS, STILL_RATE, check_rate, exact_rate, find_coding
from .flows import FrameFlow, estimate_flows, settle_cuts
from .frames import Frame, Moment, Selection
from .movies import Movie, PictureVideo, SlowMotion, SlowMotionFrames
from .panels import PANELS, flow_colors, parse_panels
from .run import Outputs, output_kind, run
from .sources import Source, open_source, stamp, video_source
from .threads import Behind, ahead
from .writers import FlowFiles, FlowStack, StatisticsTable, Writer, refuse_one_name
