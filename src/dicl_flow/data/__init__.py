"""Data sets: pairs on disk, samples in memory, batches for training. Never imports models."""

from .sample import FlowBatch, FlowPair, FlowSample, collate, read_sample

__all__ = ["FlowBatch", "FlowPair", "FlowSample", "collate", "read_sample"]
