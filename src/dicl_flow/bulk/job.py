"""What the output of a bulk run depends on: kept with it, so that no two runs mix."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, unknown_name
from ..files import FLOW_SUFFIXES, check_flow_name, read_bytes
from .storage import Storage, is_address, open_storage, read_json
from .tables import TABLE_SUFFIXES, check_table

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator

FILE = "settings.json"
FIELDS, DECODERS = ("npy", "png"), ("pyav", "opencv")


@dataclass(frozen=True)
class Settings:
    """What to compute and to write of each flow."""

    weights: str
    """The sha256 of the weights file."""
    scores: bool = True
    """Write a table with a row for each flow, and one with a row for each clip."""
    table: str = "parquet"
    """The format of the tables: parquet or csv."""
    fields: str = ""
    """Write flow fields as tar shards of npy (fp16) or png (KITTI); empty: none."""
    grid: int = 1
    """Fields are means over squares of this side, in px of the frame; 1: every pixel."""
    flows: str = ""
    """Write a flow file for each flow, such as flo; empty: none."""
    occlusion: bool = False
    """Estimate the backward flow too, and with it the occluded share."""
    min_confidence: float | None = None
    """Flow with less confidence is unknown."""
    device: str = "cpu"
    """The kind of device: cpu, cuda or mps."""
    precision: str = "auto"
    backend: str = "auto"
    quality: str = "normal"
    full_size: bool = False
    decoder: str = "pyav"
    """What reads videos: pyav or opencv."""
    segment: int = 256
    """How many flows are written at a time, at least if clips are short."""
    tables: int = 1
    """What columns the tables have: a change of them gets the next number, so that none mix."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not (self.scores or self.fields or self.flows):
            raise InputError("nothing to write: choose scores, `fields` or `flows`")
        _check("table", self.table, [suffix[1:] for suffix in TABLE_SUFFIXES])
        check_table(f".{self.table}")
        _check("decoder", self.decoder, DECODERS)
        if self.fields:
            _check("fields", self.fields, FIELDS)
        elif self.grid != 1:
            raise InputError("`grid` is for `fields`, and none are written")
        if self.flows:
            _check("flows", self.flows, [suffix[1:] for suffix in FLOW_SUFFIXES])
            check_flow_name(f".{self.flows}")
        if self.grid < 1:
            raise InputError(f"`grid` must be at least 1, got {self.grid}")
        if self.segment < 1:
            raise InputError(f"`segment` must be at least 1, got {self.segment}")

    def encode(self) -> bytes:
        """The same settings are the same bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def _check(name: str, value: str, known: Any) -> None:
    if value not in known:
        raise unknown_name(f"`{name}`", value, known)


@dataclass(frozen=True)
class Job:
    """A bulk run: all that a process needs to compute any segment of it."""

    settings: Settings
    out: str
    """The folder of the output, a path or an address."""
    root: str = ""
    """The folder that the paths of the manifest are relative to."""
    weights: str | None = None
    """Name or path of the weights."""
    memory_limit: int | None = None
    """Bytes that an estimate may use."""

    def storage(self) -> Storage:
        """Open the output."""
        return open_storage(self.out)

    def place(self, text: str) -> str:
        """Where a path of the manifest leads."""
        if is_address(text) or not self.root:
            return text
        return f"{self.root}/{text}" if is_address(self.root) else str(Path(self.root) / text)

    def load(self, device: str) -> "FlowEstimator":
        """Load the network onto a device; other weights than those of the settings are refused."""
        from ..estimation.estimator import load

        how = self.settings
        if self.weights and Path(self.weights).is_file() and sha256_of(self.weights) != how.weights:
            raise InputError(
                f"{self.weights} differs from the weights of {self.out}, whose sha256 is "
                f"{how.weights}"
            )
        precision, backend = how.precision, how.backend
        return load(
            self.weights,
            *(device, precision, backend, self.memory_limit, how.quality),
            full_size=how.full_size,
        )


def sha256_of(path: str | Path) -> str:
    """Identifies a weights file."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def keep_settings(job: Job, manifest: str, segments: int) -> None:
    """Write the settings next to the output, or refuse to add to the output of other ones.

    `manifest` is the sha256 of its rows.
    """
    about = {"manifest": manifest, "root": job.root, "segments": segments}
    now = {**asdict(job.settings), **about}
    storage = job.storage()
    if storage.create(FILE, (json.dumps(now, indent=1) + "\n").encode()):
        return
    before = read_json(storage, FILE)
    changes = [
        f"`{name}` was {_word(before.get(name))} and is {_word(now.get(name))} now"
        for name in now
        if name != "segments" and before.get(name) != now.get(name)
    ]
    if changes:
        raise InputError(
            f"{job.out} holds the output of other settings: {', '.join(changes)}; use the same "
            "settings, or another output"
        )


def read_settings(storage: Storage, out: str) -> tuple[Settings, dict[str, Any]]:
    """Read the settings of an output, and what it says of its manifest: sha256, root, segments."""
    try:
        found = dict(read_json(storage, FILE))
    except FileNotFoundError:
        raise FileNotFoundError(f"no bulk output at {out}: it has no {FILE}") from None
    names = [field.name for field in fields(Settings)]
    try:
        return Settings(**{name: found.pop(name) for name in names}), found
    except KeyError as error:
        raise InputError(
            f"{out}/{FILE} has no {error}: another version of dicl-flow wrote it, or it is damaged"
        ) from None


def _word(value: Any) -> str:
    if value is None or value == "":
        return "not given"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text[:12]}…" if len(text) == hashlib.sha256().digest_size * 2 else text
