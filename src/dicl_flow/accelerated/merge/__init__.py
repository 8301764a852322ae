"""Merges of the feature net: a coarser (or finer) map, resampled, joins the map of a level.

    merge(neighbour, skip) = fuse(cat([relu(resample(neighbour)), skip]))

`resample` and `fuse` are convolutions. On a CPU both are folded, and oneDNN applies the ReLU; on a
GPU, one kernel applies it while it writes both maps side by side, in `cuda` and in `training`.
"""
