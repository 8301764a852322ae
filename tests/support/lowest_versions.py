"""Print the lowest versions that pyproject.toml allows, of the package and of some extras.

python lowest_versions.py TORCH
"""

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("video", "train", "export", "hub", "web")


def lowest(requirements, torch):
    """ "numpy>=2.0" -> "numpy==2.0"; torch is pinned to a version that can be had."""
    pins = [re.sub(r">=([\d.]+).*", r"==\1", requirement) for requirement in requirements]
    return [f"torch=={torch}" if pin.startswith("torch==") else pin for pin in pins]


def main(torch):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = [name for extra in EXTRAS for name in project["optional-dependencies"][extra]]
    print(*lowest([*project["dependencies"], *extras], torch), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
