"""The matching net's last two layers: a transposed convolution, and one that gives the scores.

The transposed convolution (4x4, stride 2) makes four fine pixels of each coarse one. The four fine
pixels around a corner of the coarse pixels see the same four coarse ones: it is a 2x2 convolution
to four groups of channels, without products with zero (`folded.up_to_corners`). Where Winograd's
products with zero cost nothing, it is a 3x3 convolution to the four pixels of each coarse one
(`folded.up_to_cells`).

The last layer, to one channel, is turned around: not what a score collects from its nine
neighbours, but what a pixel adds to the scores around it.

- `cpu`: one product of matrices for all taps, then sums of shifted maps.
- `cuda`: both layers in one kernel; the four pixels of a corner add to the 4x4 scores around it,
  and `readout` adds these patches up.
- `training`: the transposed layer is cuDNN's; the last one is two kernels.
"""
