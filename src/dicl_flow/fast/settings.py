from contextlib import AbstractContextManager

import torch


def cudnn_flags(**changes: bool) -> AbstractContextManager[None]:
    """Change some of cuDNN's settings for a while; the others stay as they are.

    `benchmark=True` lets it time its algorithms for each new shape and keep the fastest.
    """
    settings = torch.backends.cudnn
    kept = {name: getattr(settings, name) for name in ("benchmark", "deterministic", "allow_tf32")}
    return settings.flags(enabled=True, **{**kept, **changes})
