"""Triton kernels, one file each; imported by `inference` and `training` when first used."""
# mypy: disable-error-code="import-untyped,import-not-found"

from ...errors import InputError

try:
    import triton  # noqa: F401
except ImportError as error:
    raise InputError(
        "the accelerated layers need Triton on a GPU, which comes with the CUDA builds of torch on "
        "Linux; install one of those, or use the plain backend"
    ) from error
