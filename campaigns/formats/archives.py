"""Zip archives that lie: bombs, nested ones, wrong sizes, duplicates, encrypted entries."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from functools import cache
from random import Random

from ..mutations import extreme


@cache
def bomb(mebibytes: int) -> bytes:
    """Return zeros, compressed with zlib."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(2**20)) for _ in range(mebibytes)]
    return b"".join([*parts, packer.flush()])


def unpacked(data: bytes) -> dict[str, bytes]:
    """Return the entries of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(entries: Mapping[str, bytes], dice: Random) -> bytes:
    """Return an archive, mostly a right one."""
    method = dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    data = buffer.getvalue()
    return _lying(data, dice) if dice.random() < 0.5 else data


def packed_zeros(name: str, start: bytes, mebibytes: int) -> bytes:
    """Return an archive with one entry: `start`, followed by zeros."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name, "w") as entry,
    ):
        entry.write(start)
        for _ in range(mebibytes):
            entry.write(bytes(2**20))
    return buffer.getvalue()


def nested(data: bytes, depth: int, name: str) -> bytes:
    """Return an archive in an archive, `depth` times."""
    for _ in range(depth):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, data)
        data = buffer.getvalue()
    return data


def _lying(data: bytes, dice: Random) -> bytes:
    """Change a field of a local or a central header: method, flags, sums, sizes, offsets."""
    signature = dice.choice((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"))
    start = data.find(signature)
    place = start + 4 + 2 * dice.randrange(20)
    new = dice.choice((extreme(dice), dice.randbytes(2), b"\x01\0", b"\x0e\0", b"\x63\0"))
    return data[:place] + new + data[place + len(new) :]
