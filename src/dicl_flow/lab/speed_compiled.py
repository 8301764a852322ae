"""The plain network through torch.compile: a row of `dicl-flow bench`, and nothing else."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from ..errors import InputError
from ..models import FlowNetwork

COMPILED = "compiled"
_INSTEAD = "measure without the compiled network"


def check_compiler(device: torch.device) -> None:
    """Refuse what torch.compile cannot do, before anything is measured."""
    if device.type == "cuda":
        if find_spec("triton") is None:
            raise InputError(f"torch.compile needs Triton on a GPU; install it, or {_INSTEAD}")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise InputError(
            f"torch.compile needs a C++ compiler, which was not found; install g++ or clang++, set "
            f"CXX to one, or {_INSTEAD}"
        ) from None


def compile_network(model: FlowNetwork, device: torch.device) -> FlowNetwork:
    """Return a copy of `model` that is compiled when it is first called, for one shape.

    Inductor treats the weights as constants (freezing), so that it can fold and reorder them as
    the accelerated network does; on a GPU it records CUDA graphs, as that does, too.
    """
    torch.compiler.reset()  # else the sizes measured before count towards the limit of recompiling
    compiled = copy.deepcopy(model)
    options = {"freezing": True, "triton.cudagraphs": device.type == "cuda"}
    compiled.compile(dynamic=False, options=options)
    return compiled


@contextmanager
def explained() -> Iterator[None]:
    """Say in one sentence that the compiler failed."""
    from torch._dynamo.exc import BackendCompilerFailed

    try:
        yield
    except BackendCompilerFailed as error:
        reason = str(error.inner_exception).strip().partition("\n")[0]
        raise InputError(f"torch.compile failed here ({reason}); {_INSTEAD}") from error
