"""A traced estimator compiled by AOTInductor for this CPU, for C++ programs without Python."""

import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ..errors import InputError


def require_compiler() -> None:
    """Refuse before minutes of work, not after them; torch looks for the same compiler."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        raise InputError(
            f"the format 'compiled' needs a C++ compiler, and there is no {name!r} on this "
            f"machine: install g++, or name another compiler in the environment variable CXX"
        )


def describe_target() -> str:
    """Say where a file compiled here runs."""
    return f"CPUs with the instructions in AOTI_CPU_ISA; torch {torch.__version__}"


def encode_compiled(program: ExportedProgram, metadata: dict[str, str]) -> bytes:
    """Compile, and return the bytes of the package."""
    # both are imported here, as they take seconds
    from torch._inductor.exc import CppCompileError
    from torch._inductor.utils import fresh_cache

    buffer = io.BytesIO()
    how = {
        "aot_inductor.metadata": metadata,
        # those who ask for checks of what they pass in may pass a single pair
        "aot_inductor.check_lowerbound": False,
        "cpp.dynamic_threads": True,  # as many as the program has, not as this machine
    }
    try:
        with fresh_cache():  # nothing is left in the folder for temporary files
            torch._inductor.aoti_compile_and_package(
                program, package_path=buffer, inductor_configs=how
            )
    except CppCompileError as error:
        raise InputError(f"the C++ compiler failed: {error.output}") from None
    return buffer.getvalue()


def open_compiled(data: bytes) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    """Load a package."""
    return torch._inductor.aoti_load_package(io.BytesIO(data))
