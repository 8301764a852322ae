"""Decoders of images and videos in processes of their own, which can do nothing else."""
# ruff: noqa: F401
# mypy: implicit-reexport

from .decoders import LostDecoderError, interpreting
from .readers import (
    can_fence,
    current_fence,
    describe_fence,
    fenced,
    fenced_stream,
    handed,
    machine_fences,
    put_up_fence,
    take_down_fence,
)
