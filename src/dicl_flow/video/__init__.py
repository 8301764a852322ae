"""Flow of whole videos: read frames, estimate flows, pass them to writers, in constant memory."""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from ..data.timing import Shot
from .checkpoint import Checkpoint, State
from .coding import (
    CONTAINERS,
    STILL_RATE,
    Film,
    check_rate,
    find_coding,
    lost_of,
    output_kind,
    plan_film,
)
from .flows import CUTS, Behind, FrameFlow, ahead, estimate_flows
from .frames import (
    Frame,
    Moment,
    Selection,
    Source,
    first_size,
    open_source,
    stamp,
    still_suffix,
    video_source,
)
from .live import LivePictures, LiveState, Newest, paced
from .movies import PictureVideo, SlowMotion, SlowMotionFrames
from .run import Outputs, run
from .sound import find_sound
from .writers import (
    PANELS,
    Covered,
    FlowFiles,
    FlowStack,
    StatisticsTable,
    Writer,
    parse_region,
    read_mask,
    refuse_one_name,
)
