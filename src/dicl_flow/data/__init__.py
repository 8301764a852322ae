"""Data sets: pairs on disk, samples in memory, batches for training. Does not import models."""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from .augmentation import FlowDataset, augment
from .datasets import (
    DATA_SETS,
    DataSet,
    chairs_pairs,
    data_set,
    demo_pairs,
    hd1k_pairs,
    kitti_pairs,
    kitti_test_pairs,
    list_pairs,
    middlebury_pairs,
    parse_data_argument,
    sintel_pairs,
    sintel_test_pairs,
    stereo_pairs,
    things_pairs,
)
from .own import own_pairs
from .sample import FlowBatch, FlowPair, FlowSample, collate, read_frames, read_sample
from .survey import Survey
from .video_frames import video_frames
