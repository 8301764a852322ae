"""Mutations that need not know the format of a file: bytes, numbers and parts of it."""

import re
import struct
from collections.abc import Callable, Sequence
from random import Random

SIZES = (0, 1, 2, 3, 255, 256, 32767, 32768, 46341, 65535, 65536, 12_000, 20_000, 99_999, 10**6)
EXTREMES = (*SIZES, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45, 1e10, -0.0)
WORDS = (
    *("0", "-1", "1", "2147483648", "-2147483648", "4294967295", "9223372036854775808"),
    *("65536", "46341", "1e400", "nan", "inf", "-inf", "1e-400", "9" * 30, "9" * 5000, "\0", ""),
)


def extreme(dice: Random) -> bytes:
    """Return an extreme number as 2, 4 or 8 bytes in either order."""
    size, order = dice.choice((2, 4, 4, 8)), dice.choice(("little", "big"))
    return (dice.choice(EXTREMES) % 256**size).to_bytes(size, order)


def mutated(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    """Return a file with one or a few random changes; `others` are for splices."""
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        data = dice.choice(_CHANGES)(data, dice, others)
    return data


def _place(data: bytes, dice: Random) -> int:
    """Half of the places are near the start or the end, where headers and indices are."""
    near = min(len(data), 96)
    kind = dice.randrange(4)
    if kind == 0:
        return dice.randrange(near + 1)
    if kind == 1:
        return len(data) - dice.randrange(near + 1)
    return dice.randrange(len(data) + 1)


def _flip(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    changed, place = bytearray(data), min(_place(data, dice), len(data) - 1)
    changed[place] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    return _replaced(data, _place(data, dice), extreme(dice))


def _float(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    form = dice.choice(("<f", "<f", ">f", "<d", "<e"))
    value = dice.choice(_FLOATS)
    number = struct.pack(form, value) if form != "<e" or abs(value) < 6e4 else b"\0\x7c"
    return _replaced(data, _place(data, dice) // 4 * 4, number)


def _random_byte(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    return _replaced(data, _place(data, dice), dice.randbytes(1))


def _truncate(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    return data[: _place(data, dice)]


def _cut(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    place = _place(data, dice)
    return data[:place] + data[place + dice.randrange(64) :]


def _insert(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    place = _place(data, dice)
    return data[:place] + dice.randbytes(dice.randrange(64)) + data[place:]


def _repeat(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    place = _place(data, dice)
    return data[: place + dice.randrange(256)] + data[place:]


def _splice(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    other = dice.choice(others)
    return data[: _place(data, dice)] + other[_place(other, dice) :]


def _word(data: bytes, dice: Random, others: Sequence[bytes]) -> bytes:
    """Replace a number that is written in digits."""
    numbers = list(re.finditer(rb"-?\d+", data[:4096]))
    if not numbers:
        return _overwrite(data, dice, others)
    found = dice.choice(numbers)
    return data[: found.start()] + dice.choice(WORDS).encode() + data[found.end() :]


def _replaced(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


_CHANGES: tuple[Callable[[bytes, Random, Sequence[bytes]], bytes], ...] = (
    *(_flip, _flip, _overwrite, _overwrite, _overwrite, _float, _random_byte),
    *(_truncate, _cut, _insert, _repeat, _splice, _word),
)
