"""Flows of other methods, which are given as files: NAME=FILE or NAME=FOLDER."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data import FlowPair
from ..errors import InputError
from ..files import FLOW_SUFFIXES


@dataclass(frozen=True)
class GivenFlows:
    """The flow files of one method, by the name of the pair."""

    name: str
    files: Mapping[str, Path]


def find_flows(argument: str, pairs: Sequence[FlowPair]) -> GivenFlows | None:
    """Find the flow of each pair; None if `argument` is not NAME=PATH, but weights or a baseline.

    A file is the flow of the only pair. A folder holds DATA/PAIR.flo, as `eval` keeps them, or
    PAIR.flo, as the benchmarks name them; other formats of flow files will do.
    """
    name, separator, place = argument.partition("=")
    if not separator or Path(argument).is_file():
        return None
    path = Path(place).expanduser()
    if not name or not path.exists():
        raise FileNotFoundError(f"{argument!r} is NAME=PATH, but there is no {path}")
    if path.is_dir():
        return GivenFlows(name, {pair.name: _in_folder(path, pair) for pair in pairs})
    if len(pairs) > 1:
        raise InputError(f"{path} is one flow, but there are {len(pairs)} pairs; give a folder")
    return GivenFlows(name, {pairs[0].name: path})


def _in_folder(folder: Path, pair: FlowPair) -> Path:
    for path in _candidates(folder, pair):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no flow of {pair.name} in {folder}; expected {next(_candidates(folder, pair))}"
    )


def _candidates(folder: Path, pair: FlowPair) -> Iterator[Path]:
    data, _, rest = pair.name.partition("/")
    kept = f"{data.replace(':', '-')}/{rest}" if rest else data
    for name in filter(None, (kept, rest)):
        for suffix in FLOW_SUFFIXES:
            yield folder / f"{name}{suffix}"
