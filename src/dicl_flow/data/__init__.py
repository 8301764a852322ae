"""Data sets: pairs on disk, samples in memory, batches for training. Does not import models."""
# ruff: noqa: F401
# mypy: implicit-reexport

from .augmentation import FlowDataset, augment
from .datasets import (
    data_set,
    demo_pairs,
    kitti_test_pairs,
    list_pairs,
    parse_data_argument,
    sintel_test_pairs,
)
from .own import own_pairs
from .sample import (
    FlowBatch,
    FlowPair,
    FlowSample,
    Survey,
    UnlabelledBatch,
    collate,
    read_frames,
    read_sample,
)
from .timing import video_frames
from .worlds import spring_test_pairs
