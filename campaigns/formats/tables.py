"""Recipes (TOML) and manifests: those of bulk runs (CSV, Parquet) and of own pairs (CSV)."""

import io
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from dicl_flow.bulk.manifest import Row, read_manifest
from dicl_flow.data.own import own_pairs
from dicl_flow.training import read_recipe, recipe_names

from ..mutations import WORDS
from . import Format
from .plain_data import changed_toml

_PACKAGED = Path(read_recipe.__code__.co_filename).parents[1] / "recipes"
_ENTRIES = (
    *WORDS,
    *("a.png", "../a.png", "s3://x/y", "é", '"', '""', "'", ",", "\n", "\r", "\x1f", "\x1e"),
    *("\ufeff", "3.5s", "-1s", "nans", "infs", "²", "٣", "a" * 200_000, " ", "\u2028", "x,y"),
    *('"a\nb"', "=1+1"),
)


def _recipe_seeds() -> list[bytes]:
    return [(_PACKAGED / f"{name}.toml").read_bytes() for name in recipe_names()]


def _recipe(dice: Random, seeds: Sequence[bytes]) -> bytes:
    return changed_toml(dice.choice(seeds).decode(), dice).encode()


def _read_recipe(path: Path) -> Any:
    return read_recipe(str(path), [])


def _csv_seeds() -> list[bytes]:
    return [
        b"image1,image2\na.png,b.png\nb.png,c.png\n",
        b"path,start,end,stride,flows\nclip.mp4,0,10,2,5\nclips/x,3.5s,,,\n\xc3\xa9.mp4,,,1,\n",
    ]


def _own_seeds() -> list[bytes]:
    return [b"image1,image2,flow\na.png,b.png,f.flo\n", b"image1,image2\na.png,b.png\n"]


def _csv(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Change entries, lines and columns."""
    rows = [line.split(",") for line in dice.choice(seeds).decode().splitlines()]
    for _ in range(dice.choice((1, 1, 2, 5))):
        row = dice.choice(rows)
        kind = dice.randrange(6)
        if kind == 0:
            rows.insert(dice.randrange(len(rows) + 1), list(row))
        elif kind == 1:
            rows.remove(row)
            rows = rows or [[""]]
        elif kind == 2:
            row.insert(dice.randrange(len(row) + 1), dice.choice((*Row._fields, *_ENTRIES)))
        else:
            row[dice.randrange(len(row))] = dice.choice((*Row._fields, *_ENTRIES))
            row = row or [""]
        rows = [row or [""] for row in rows]
    lines = (dice.choice((",", ",", ",", ";", "\t")).join(row) for row in rows)
    form = dice.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig"))
    return dice.choice(("\n", "\n", "\r\n", "\r")).join(lines).encode(form, "replace")


def _rows(path: Path) -> list[Row]:
    manifest = read_manifest(str(path))
    return manifest.rows(0, len(manifest))


def _pairs(path: Path) -> list[Any]:
    for name in ("a.png", "b.png", "f.flo"):
        path.with_name(name).touch()
    return own_pairs(path)


def _table(columns: dict[str, Any], **how: Any) -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer, **how)
    return buffer.getvalue()


def _parquet_seeds() -> list[bytes]:
    pairs = {"image1": ["a.png", "b.png"], "image2": ["b.png", "c.png"]}
    clips = {"path": ["clip.mp4"] * 9, "start": [None, 1.0, 2.5] * 3, "end": [10] * 9}
    ways = ({"compression": "none"}, {"compression": "zstd"}, {"use_dictionary": False})
    return [_table(columns, **how) for columns in (pairs, clips) for how in ways]


def _parquet(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """A right table whose columns have types that no one expects."""
    import pyarrow

    count = dice.choice((0, 1, 3, 1000))
    columns = {
        name: pyarrow.array([value] * count, kind)
        for name in dice.sample(Row._fields, dice.randrange(1, 5))
        for value, kind in [dice.choice(_TYPED)]
    }
    if dice.random() < 0.1:
        columns[dice.choice(_ENTRIES[:-20])] = pyarrow.array(["x"] * count)
    packing = dice.choice(("none", "snappy", "gzip", "zstd", "brotli", "lz4"))
    return _table(columns, compression=packing, version=dice.choice(("1.0", "2.6")))


_TYPED: tuple[tuple[Any, Any], ...] = (
    *(("a.png", None), ("b.mp4", None), ("", None), ("\x1f", None), ("x" * 9999, None)),
    *((None, None), (1, None), (-(2**63), None), (1.5, None), (float("nan"), None), (True, None)),
    *((b"\xff\xfe", None), (["a"], None), ({"x": 1}, None), (2**63 - 1, None)),
    (float("inf"), None),
    *((1, "date32"), (1, "timestamp[ms]"), (1, "duration[s]"), (1, "time64[us]"), ("12", None)),
    *((-(2**31), "date32"), (2**62, "timestamp[us]"), (2**40, "duration[s]"), ("9" * 5000, None)),
)

FORMATS = {
    "recipe": Format(".toml", _recipe_seeds, _read_recipe, _recipe, shortens=True),
    "manifest": Format(".csv", _csv_seeds, _rows, _csv, shortens=True),
    "own-manifest": Format(".csv", _own_seeds, _pairs, _csv, shortens=True),
    "parquet": Format(".parquet", _parquet_seeds, _rows, _parquet),
}
