"""Images: .png, .jpg, .tiff, .webp, .bmp, .ppm, and the others that OpenCV reads."""

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from random import Random

import cv2
import numpy as np

from dicl_flow.files import Array, read_image
from dicl_flow.files.images import image_size

from ..mutations import EXTREMES, SIZES, WORDS, extreme
from . import Format
from .archives import bomb

_CHUNKS = (
    *(b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"gAMA", b"sBIT"),
    *(b"bKGD", b"hIST", b"IDAT", b"IEND", b"IHDR", b"cICP", b"xxxx", b"iTXt", b"sPLT"),
)
_EXIF = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0%c\0\0\0\0\0\0\0"


def picture(height: int = 9, width: int = 13, depth: type = np.uint8) -> Array:
    """Return an image with some structure."""
    values = np.random.default_rng(width).integers(0, np.iinfo(depth).max, (height, width, 3))
    return values.astype(depth)


def _encoded(suffix: str, images: Iterable[Array], *settings: tuple[int, ...]) -> list[bytes]:
    found = []
    for image in images:
        for setting in settings or ((),):
            found.append(bytes(cv2.imencode(suffix, image, setting)[1]))
    return found


def _png_seeds() -> list[bytes]:
    colour = [picture(), picture(4, 4, np.uint16), picture()[..., 0], np.dstack([picture()] * 2)]
    return _encoded(".png", [*colour[:3], colour[3][..., :4]])


def _jpg_seeds() -> list[bytes]:
    progressive = (cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_RST_INTERVAL, 1)
    return _encoded(".jpg", [picture(24, 40), picture()[..., 0]], (), progressive)


def _tiff_seeds() -> list[bytes]:
    images = [picture(), picture(5, 5, np.uint16), picture()[..., 0], np.float32(picture()) / 255]
    packings = [(cv2.IMWRITE_TIFF_COMPRESSION, number) for number in (1, 5, 8, 32773)]
    return _encoded(".tiff", images, *packings)


def _webp_seeds() -> list[bytes]:
    with_alpha = np.dstack([picture(), picture()[..., 0]])
    settings = ((cv2.IMWRITE_WEBP_QUALITY, 50), (cv2.IMWRITE_WEBP_QUALITY, 101))
    return _encoded(".webp", [picture(), with_alpha], *settings)


def _other_seeds() -> list[bytes]:
    """Formats that not every OpenCV writes are left out."""
    found = [*_encoded(".pgm", [picture()[..., 0]]), *_encoded(".pam", [picture()])]
    for suffix in (".gif", ".jp2", ".sr", ".avif", ".hdr"):
        image = picture(64, 64)
        with suppress(cv2.error):
            found += _encoded(suffix, [np.float32(image) / 255 if suffix == ".hdr" else image])
    return [data for data in found if data]


def chunked(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Return a PNG file whose chunks are changed, with right sums around them."""
    chunks = _chunks(dice.choice(seeds))
    for _ in range(dice.choice((1, 1, 2, 4))):
        place = dice.randrange(len(chunks))
        kind = dice.randrange(7)
        if kind == 0:
            chunks[0] = (b"IHDR", _header(chunks[0][1], dice))
        elif kind == 1:
            del chunks[place]
            chunks = chunks or [(b"IEND", b"")]
        elif kind == 2:
            chunks.insert(place, dice.choice(chunks))
        elif kind == 3:
            chunks.insert(place + 1, (dice.choice(_CHUNKS), _content(dice)))
        elif kind == 4:
            name, content = chunks[place]
            at = dice.randrange(len(content) + 1)
            chunks[place] = name, content[:at] + extreme(dice) + content[at + 4 :]
        elif kind == 5:
            rows = dice.randbytes(dice.choice((0, 1, 100, 5000)))
            chunks = [(n, zlib.compress(rows) if n == b"IDAT" else c) for n, c in chunks]
        else:
            bombs = [(n, bomb(64) if n == b"IDAT" else c) for n, c in chunks]
            chunks = bombs if dice.random() < 0.05 else chunks
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk, dice) for chunk in chunks)


def _header(content: bytes, dice: Random) -> bytes:
    width, height = (dice.choice((9, 13, *SIZES, 2**31 - 1, 2**31)) for _ in range(2))
    depth, colour = dice.choice((0, 1, 2, 4, 8, 16, 32, 255)), dice.randrange(8)
    if dice.random() < 0.5:
        width, height = struct.unpack(">II", (content + bytes(8))[:8])
    methods = dice.choice(((0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0), (0, 1, 0), (0, 64, 0)))
    return struct.pack(">II5B", width, height, depth, colour, *methods)


def _content(dice: Random) -> bytes:
    kind = dice.randrange(5)
    if kind == 0:
        return b"x\0\0" + (bomb(64) if dice.random() < 0.1 else zlib.compress(b"x" * 500))
    if kind == 1:
        return _EXIF % dice.randrange(12)
    if kind == 2:
        return struct.pack(">II", dice.choice((0, 1, 2, 9999, 2**31)), dice.choice((0, 1)))
    if kind == 3:
        numbers = [dice.choice((0, 0, 1, 2, 9, 13, *EXTREMES[-6:])) % 2**32 for _ in range(5)]
        return struct.pack(
            ">5IHHBB", *numbers, 1, dice.choice((0, 10)), *dice.choices(range(4), k=2)
        )
    return dice.randbytes(dice.choice((0, 1, 3, 256, 768, 771)))


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], 8
    while place + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        found.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    return found


def _chunk(name: bytes, content: bytes, dice: Random) -> bytes:
    length = len(content) if dice.random() < 0.98 else dice.choice(EXTREMES) % 2**32
    return (
        struct.pack(">I", length) + name + content + struct.pack(">I", zlib.crc32(name + content))
    )


def _jpg(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Change one byte or number of a segment before the scans, or add segments."""
    data = dice.choice(seeds)
    starts = [2]
    while data[starts[-1] + 1] != 0xDA:
        starts.append(starts[-1] + 2 + struct.unpack_from(">H", data, starts[-1] + 2)[0])
    start, kind = dice.choice(starts), dice.randrange(5)
    if kind == 0:
        exif = b"Exif\0\0" + _EXIF % dice.randrange(12)
        added = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
        return data[:2] + added * dice.choice((1, 3)) + data[2:]
    if kind == 1:  # many scans of one picture
        scan = data[starts[-1] : -2]
        return data[:-2] + scan * dice.choice((1, 3, 200)) + data[-2:]
    frame = next(at for at in starts if data[at + 1] in (0xC0, 0xC2))
    if kind == 2:
        sides = struct.pack(">HH", dice.choice(SIZES) % 2**16, dice.choice(SIZES) % 2**16)
        return data[: frame + 5] + sides + data[frame + 9 :]
    if kind == 3:
        marker = dice.choice(range(0xC0, 0xFF))
        return data[: start + 1] + bytes([marker]) + data[start + 2 :]
    place = dice.choice((start, frame)) + dice.randrange(2, 24)
    return data[:place] + dice.randbytes(1) + data[place + 1 :]


def _tiff(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Change entries of the directory, or where it continues."""
    data = bytearray(dice.choice(seeds))
    (start,) = struct.unpack_from("<I", data, 4)
    (number,) = struct.unpack_from("<H", data, start)
    for _ in range(dice.choice((1, 1, 2, 4))):
        place = start + 2 + 12 * dice.randrange(number)
        kind = dice.randrange(6)
        if kind == 0:
            tags = (*range(254, 285), 292, 317, *range(320, 340), 347, 512, 513, 530, 34675, 274)
            struct.pack_into("<H", data, place, dice.choice(tags))
        elif kind == 1:
            struct.pack_into("<H", data, place + 2, dice.choice((*range(19), 65535)))
        elif kind == 2:
            struct.pack_into("<I", data, place + 4, dice.choice(EXTREMES) % 2**32)
        elif kind == 3:
            struct.pack_into("<I", data, place + 8, dice.choice(EXTREMES) % 2**32)
        elif kind == 4:
            values = (*range(20), 32, 64, 5, 7, 8, 32773, 34712, 50000, 50001, 34925, 32946)
            struct.pack_into("<I", data, place + 8, dice.choice(values))
        else:
            following = dice.choice((start, 0, 8, len(data) - 4, *EXTREMES)) % 2**32
            struct.pack_into("<I", data, start + 2 + 12 * number, following)
    return bytes(data)


def _fields(start: int, end: int) -> Callable[[Random, Sequence[bytes]], bytes]:
    """Change numbers at multiples of two bytes within a header."""

    def structured(dice: Random, seeds: Sequence[bytes]) -> bytes:
        data = dice.choice(seeds)
        for _ in range(dice.choice((1, 1, 2, 3))):
            place, new = dice.randrange(start, end, 2), extreme(dice)
            new = dice.choice((new, bytes([dice.randrange(34)]), dice.randbytes(2)))
            data = data[:place] + new + data[place + len(new) :]
        return data

    return structured


def _ppm(dice: Random, seeds: Sequence[bytes]) -> bytes:
    words = dice.choice(seeds).split(maxsplit=4)
    kinds = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "PF")
    words[dice.randrange(4)] = dice.choice(
        (*kinds, *WORDS, *map(str, SIZES), "+5", "0x10")
    ).encode()
    spaces = (b"\n", b" ", b"\t", b"", b"\n# comment 9 9\n", b"\r\n")
    body = words[4] if len(words) > 4 else b""
    return b"".join(word + dice.choice(spaces) for word in words[:4]) + body


def _sound(data: bytes, result: Array) -> str:
    """Whether it is an image, with the size that the header states; rotated by the EXIF data."""
    if result.dtype not in (np.uint8, np.uint16, np.float32) or result.shape[2:] != (3,):
        return f"not an image: {result.dtype} {result.shape}"
    size = image_size(data)
    if size is None or sorted(size) != sorted(result.shape[:2]):
        return f"has {result.shape}, the header states {size}"
    return ""


def _format(
    suffix: str,
    seeds: Callable[[], list[bytes]],
    structured: Callable[[Random, Sequence[bytes]], bytes],
) -> Format:
    return Format(suffix, seeds, read_image, structured, _sound)


def _bmp_seeds() -> list[bytes]:
    return _encoded(".bmp", [picture(), picture(1, 1), picture()[..., 0]])


def _ppm_seeds() -> list[bytes]:
    plain = b"P3\n2 1\n255\n1 2 3\n4 5 6\n"
    deep = _encoded(".ppm", [picture(), picture(1, 1), picture(4, 4, np.uint16)])
    return [*deep, *_encoded(".pgm", [picture()[..., 0]]), plain, b"P1\n2 2\n1 0\n0 1\n"]


FORMATS = {
    "png": _format(".png", _png_seeds, chunked),
    "jpg": _format(".jpg", _jpg_seeds, _jpg),
    "tiff": _format(".tiff", _tiff_seeds, _tiff),
    "webp": _format(".webp", _webp_seeds, _fields(4, 40)),
    "bmp": _format(".bmp", _bmp_seeds, _fields(2, 54)),
    "ppm": _format(".ppm", _ppm_seeds, _ppm),
    "other-images": _format(".img", _other_seeds, _fields(0, 60)),
}
