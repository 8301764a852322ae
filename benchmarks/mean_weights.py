"""The mean of two weights files, tensor by tensor: of two runs of one network.

    python benchmarks/mean_weights.py FIRST SECOND OUTPUT

What the files say of themselves is taken from SECOND; calibrate the result again.
"""

import sys

from safetensors import safe_open
from safetensors.torch import save_file

first, second, output = sys.argv[1:]
with safe_open(first, "pt") as one, safe_open(second, "pt") as other:
    if set(one.keys()) != set(other.keys()):
        sys.exit(f"{first} and {second} are not of the same network")
    mean = {}
    for name in other.keys():  # noqa: SIM118 (a file, not a dictionary)
        ours, theirs = one.get_tensor(name), other.get_tensor(name)
        if theirs.is_floating_point():  # others count batches
            theirs = ((ours.double() + theirs.double()) / 2).to(theirs.dtype)
        mean[name] = theirs
    about = other.metadata()
save_file(mean, output, metadata=about)
