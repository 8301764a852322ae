"""Flow files: .flo, .pfm, KITTI's .png, .npz, .npy, .flo5 and .exr; truths of single data sets."""

import io
import re
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from random import Random
from typing import Any

import cv2
import numpy as np

from dicl_flow.files import Array, encode_arrays, encode_flow, read_flow, read_truth

from ..mutations import EXTREMES, SIZES, WORDS, extreme, mutated
from . import Format
from .archives import nested, packed, packed_zeros, unpacked
from .images import chunked

_TYPES = (
    *("<f4", ">f4", "<f8", "<f2", "|i1", "<u8", "<c8", "|b1", "|O", "|O8", "|S4", "<U4", "|V8"),
    *("<M8[s]", "[('a', '<f4')]", "('<f4', (2,))", "<f3", "", "f" * 100, "<f16", "|S0", "|V0"),
)


def flow(height: int = 5, width: int = 7) -> Array:
    """Return a flow with an unknown pixel."""
    values = np.random.default_rng(height).normal(0, 20, (height, width, 2)).astype(np.float32)
    values[0, 0] = np.nan
    return values


def _seeds(*suffixes: str) -> list[bytes]:
    small = [flow(), flow(1, 1), flow(16, 3)]
    return [encode_flow(f"x{suffix}", values) for suffix in suffixes for values in small]


def _sound(data: bytes, result: Array) -> str:
    """Whether a result is a flow at all."""
    if result.dtype != np.float32 or result.ndim != 3 or result.shape[2] != 2 or not result.size:
        return f"not a flow: {result.dtype} {result.shape}"
    unknown = np.isnan(result)
    if (unknown[..., 0] != unknown[..., 1]).any() or np.isinf(result).any():
        return "half of a vector is unknown, or infinite"
    return ""


def _same(result: Array, values: Array) -> str:
    values = values.astype(np.float32)
    unknown = np.isnan(values).any(2)
    values[unknown] = np.nan
    equal = result.shape == values.shape and np.array_equal(result, values, equal_nan=True)
    return "" if equal else "differs from a second reader"


def _flo_problem(data: bytes, result: Array) -> str:
    width, height = struct.unpack("<ii", data[4:12])
    values = np.frombuffer(data[12:], "<f4").reshape(height, width, 2).copy()
    values[~(np.abs(values) <= 1e9)] = np.nan
    return _sound(data, result) or _same(result, values)


def _pfm_problem(data: bytes, result: Array) -> str:
    _, width, height, scale = data.split(maxsplit=4)[:4]
    values = np.frombuffer(data[-int(width) * int(height) * 12 :], "<f4")
    values = values if float(scale) < 0 else values.byteswap()
    return _sound(data, result) or _same(
        result, values.reshape(int(height), int(width), 3)[::-1, :, :2].copy()
    )


def _numpy_problem(data: bytes, result: Array) -> str:
    if data.startswith(b"\x93NUMPY"):
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
    else:  # np.load wants an archive at the very start of the file
        archive = np.lib.npyio.NpzFile(io.BytesIO(data), allow_pickle=False)
        loaded = archive[archive.files[0] if len(archive.files) == 1 else "flow"]
    return _sound(data, result) or _same(result, loaded)


def _flo(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Sizes that fit the data in product, or nearly, and those that do not."""
    data = dice.choice(seeds)
    width, height = struct.unpack("<ii", data[4:12])
    sides = dice.choice(((height, width), (width * height, 1), (-width, -height), None))
    if sides is None:
        sides = (dice.choice(EXTREMES) % 2**32, dice.choice(EXTREMES) % 2**32)
    packed_sides = [side % 2**32 for side in sides]
    return data[:4] + struct.pack("<II", *packed_sides) + data[12:]


def _pfm(dice: Random, seeds: Sequence[bytes]) -> bytes:
    data = dice.choice(seeds)
    words = data.split(maxsplit=4)
    place = dice.randrange(4)
    words[place] = dice.choice((*WORDS, "Pf", "PF", "-0", "+1", "1e5", "٣", "1_0")).encode()
    spaces = (b"\n", b" ", b"\r\n", b"", b"\n# x\n")
    return b"".join(word + dice.choice(spaces) for word in words[:4]) + words[4]


def _npy(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """A header that numpy would accept around it, or nearly."""
    sides = [dice.choice((-1, *SIZES, 2**31, 2**62, 5, 7, 2)) for _ in range(dice.randrange(5))]
    shape = dice.choice((tuple(sides), (5, 7, 2), (7, 5, 2), (5, 7, 2, 1), (True, 35, 2), (70.0,)))
    text = repr({"descr": "DTYPE", "fortran_order": dice.random() < 0.5, "shape": shape})
    kind = dice.choice(_TYPES)
    text = text.replace("'DTYPE'", kind if kind[:1] in ("[", "(") else repr(kind))
    odd = ("", text + text, "(" * 900, "[" * 9000, text[:-2], f"{text} or 1", "{'descr'")
    odd += ("1" * 9000,)
    text = dice.choice(odd) if dice.random() < 0.1 else text
    version, form = dice.choice(((b"\1\0", "<H"), (b"\2\0", "<I"), (b"\3\0", "<I")))
    body = dice.choice(seeds)[-280:]
    return b"\x93NUMPY" + version + struct.pack(form, len(text)) + text.encode() + body


def _npz(dice: Random, seeds: Sequence[bytes]) -> bytes:
    entry = next(iter(unpacked(dice.choice(seeds)).values()))
    kind = dice.randrange(8)
    if kind == 0:
        return nested(dice.choice(seeds), dice.choice((1, 2, 10)), "flow.npy")
    if kind == 1 and dice.random() < 0.05:
        return dice.choice(_bombs())
    if kind == 2:
        return packed({"flow.npy": entry, "flow": entry[:40], "x.npy": b"PK"}, dice)
    if kind == 3:
        return packed({dice.choice(("flow.npy", "../flow.npy", "x\0", "é" * 200)): entry}, dice)
    if kind == 4:
        return packed({f"{number}.npy": entry for number in range(dice.choice((0, 2, 50)))}, dice)
    damaged = mutated(entry, dice, [entry]) if kind == 5 else _npy(dice, [entry])
    return packed({"flow.npy": damaged}, dice)


@cache
def _bombs() -> list[bytes]:
    """Zeros of 192 MiB that are no array, follow one, and are one."""
    about = {"descr": "<f4", "fortran_order": False, "shape": (3000, 3000, 2)}
    headers = [io.BytesIO() for _ in range(3)]
    np.lib.format.write_array_header_1_0(headers[1], {**about, "shape": (5, 7, 2)})
    np.lib.format.write_array_header_1_0(headers[2], about)
    return [packed_zeros("flow.npy", header.getvalue(), 192) for header in headers]


_ATTRIBUTE = rb"(dataWindow|displayWindow|compression|channels|lineOrder|type|tiles|chunkCount)"


def _exr(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Change an attribute, the flags of the version, or an entry of the table of offsets."""
    data = dice.choice(seeds)
    kind = dice.randrange(6)
    if kind == 0:
        flags = dice.choice((0, 2, 4, 8, 16, 0x1F, 0x80)) | dice.choice((0, 1, 2, 3))
        return data[:5] + bytes([flags]) + data[6:]
    places = list(re.finditer(_ATTRIBUTE + rb"\0(\w+)\0(....)", data, re.DOTALL))
    if kind == 1:
        found = dice.choice(places)
        names = (b"tiledimage", b"deepscanline", b"deeptile", b"scanlineimage", b"x")
        attribute = b"type\0string\0" + struct.pack("<i", 10) + dice.choice(names)
        return data[: found.start()] + attribute + data[found.start() :]
    if kind == 2:
        place = data.rfind(b"\0", 0, len(data) // 2) + dice.randrange(200)
        return data[:place] + struct.pack("<Q", dice.choice(EXTREMES)) + data[place + 8 :]
    if kind == 3 and b"dataWindow" in data:
        return _windows(data, dice)
    found = dice.choice(places)
    place = found.end() + dice.randrange(-4, 20)
    new = dice.choice((extreme(dice), bytes([dice.randrange(12)])))
    return data[:place] + new + data[place + len(new) :]


def _windows(data: bytes, dice: Random) -> bytes:
    """Give both windows the same wrong size."""
    right, bottom = (dice.choice((-2, 0, 3, 5999, 9999, 2**30, 2**31 - 2)) for _ in range(2))
    box = struct.pack("<4i", dice.choice((0, 0, -(2**31), 2**30)), 0, right, bottom)
    for name in (b"dataWindow\0box2i\0", b"displayWindow\0box2i\0"):
        place = data.index(name) + len(name) + 4
        data = data[:place] + box + data[place + 16 :]
    return data


def _flo5_problem(data: bytes, result: Array) -> str:
    import h5py

    with h5py.File(io.BytesIO(data), "r") as file:
        return _sound(data, result) or _same(result, file["flow"][()])


def _flo5_seeds() -> list[bytes]:
    """As written here, and with several chunks, other filters and types."""
    import h5py

    ways: tuple[dict[str, Any], ...] = (
        {},
        {"chunks": (4, 4, 1), "compression": "gzip", "shuffle": True},
        {"chunks": (8, 8, 2), "compression": "gzip", "maxshape": (None, None, 2), "dtype": "f2"},
    )
    seeds = _seeds(".flo5")
    for number, way in enumerate(ways):
        buffer = io.BytesIO()
        with h5py.File(buffer, "w", libver="latest" if number % 2 else "earliest") as file:
            file.create_dataset("flow", data=flow(), **way)
            file.create_dataset("other", data=[1, 2])
        seeds.append(buffer.getvalue())
    return seeds


def _flo5(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Change a side, an address or a length: HDF5 stores most of them as 8 bytes."""
    data = bytearray(dice.choice(seeds))
    words = {p: int.from_bytes(data[p : p + 8], "little") for p in range(0, len(data) - 8, 4)}
    small = [place for place, word in words.items() if 0 < word <= len(data)]
    for place in dice.sample(small, min(len(small), dice.choice((1, 1, 2)))):
        value = dice.choice((*EXTREMES, *SIZES, 5, 7, 2, len(data))) % 2**64
        data[place : place + 8] = value.to_bytes(8, "little")
    return bytes(data)


@cache
def _kitti_seeds() -> list[bytes]:
    return _seeds(".png")


def _viper_seeds() -> list[bytes]:
    u, v = np.moveaxis(flow(), 2, 0)
    half = {"u": u.astype(np.float16), "v": v.astype(np.float16)}
    return [encode_arrays(arrays) for arrays in ({"u": u, "v": v}, half)]


def _viper(dice: Random, seeds: Sequence[bytes]) -> bytes:
    entries = unpacked(dice.choice(seeds))
    name = dice.choice(("u.npy", "v.npy"))
    kind = dice.randrange(3)
    damaged = _npy(dice, [entries[name]]) if kind else mutated(entries[name], dice, [entries[name]])
    return packed({**entries, name: damaged}, dice)


def _png_seeds(kind: type[np.generic], channels: int) -> list[bytes]:
    generator = np.random.default_rng(0)
    sizes = ((5, 7), (1, 1), (16, 3))
    arrays = (generator.integers(0, 256, (*size, channels)).astype(kind) for size in sizes)
    return [bytes(cv2.imencode(".png", array)[1]) for array in arrays]


def _truth(suffix: str, encoding: str, seeds: Callable[[], list[bytes]]) -> Format:
    structured = _viper if suffix == ".npz" else chunked
    return Format(suffix, seeds, partial(read_truth, encoding=encoding), structured, _sound)


FORMATS = {
    "flo": Format(".flo", lambda: _seeds(".flo"), read_flow, _flo, _flo_problem),
    "pfm": Format(".pfm", lambda: _seeds(".pfm"), read_flow, _pfm, _pfm_problem),
    "kitti": Format(".png", _kitti_seeds, read_flow, chunked, _sound),
    "npz": Format(".npz", lambda: _seeds(".npz"), read_flow, _npz, _numpy_problem),
    "npy": Format(".npy", lambda: _seeds(".npy"), read_flow, _npy, _numpy_problem),
    "flo5": Format(".flo5", _flo5_seeds, read_flow, _flo5, _flo5_problem),
    "viper": _truth(".npz", "viper", _viper_seeds),
    "virtual-kitti": _truth(".png", "virtual-kitti", partial(_png_seeds, np.uint16, 3)),
    "kitti-disparity": _truth(".png", "kitti-disparity", partial(_png_seeds, np.uint16, 1)),
    "sintel-disparity": _truth(".png", "sintel-disparity", partial(_png_seeds, np.uint8, 3)),
    "exr": Format(".exr", lambda: _seeds(".exr", ".half.exr"), read_flow, _exr, _sound),
    "st-exr": Format(".st.exr", lambda: _seeds(".st.exr"), read_flow, _exr, _sound),
}
