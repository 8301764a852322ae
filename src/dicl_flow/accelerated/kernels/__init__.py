"""Raw Triton, one file a kernel; only the accelerated paths know it, and import it lazily."""
# mypy: disable-error-code="import-untyped,import-not-found"

from ...errors import InputError

try:
    import triton  # noqa: F401
except ImportError as error:
    raise InputError(
        "the fused layers need Triton, which comes with the CUDA builds of torch on Linux; "
        "install one of those, or train the plain network"
    ) from error
