"""Decoders of images and videos in processes of their own, which can do nothing else."""
# ruff: noqa: F401
# mypy: implicit-reexport

from .readers import (
    LostDecoderError,
    can_fence,
    current_fence,
    describe_fence,
    fenced,
    fenced_stream,
    handed,
    interpreting,
    machine_fences,
    put_up_fence,
    take_down_fence,
)
