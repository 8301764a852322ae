"""HD1K: real driving scenes."""

from pathlib import Path

from .listing import complete_pairs, digits, neighbour, require_folder
from .sample import FlowPair

_ADVICE = "point at the folder that holds 'hd1k_input' and 'hd1k_flow_gt' (both unpacked downloads)"


def hd1k_pairs(root: Path) -> list[FlowPair]:
    """List HD1K: real driving scenes at 2560x1080; the truth is sparse.

    ::

        HD1K/                             <- root
            hd1k_input/image_2/000000_0000.png          sequence_frame
            hd1k_flow_gt/flow_occ/000000_0000.png
    """
    frames = require_folder(root / "hd1k_input" / "image_2", _ADVICE)
    flows = require_folder(root / "hd1k_flow_gt" / "flow_occ", _ADVICE)
    candidates = (
        FlowPair(flow.stem, frames / flow.name, neighbour(frames / flow.name), flow, sparse=True)
        for flow in flows.glob(f"{digits(6)}_{digits(4)}.png")
    )
    return complete_pairs(candidates, root, _ADVICE)
