"""The same computation, faster: by layer, and for each layer by device. See README.md here.

`cpu`, `cuda` (backend "fast") and `training` (backend "fused") put the layers together. Files with
kernels import Triton; `cpu`, `first_layer.cpu` and what they import do not.
"""
