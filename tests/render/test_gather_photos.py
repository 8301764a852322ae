"""Photographs from packages: found, checked by hash, split by content and packed; no network."""

import io
import struct
import tarfile
import zipfile
from collections import Counter
from hashlib import sha256
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import gather_photos as gather
from dicl_flow.errors import InputError
from dicl_flow.render import is_held_out

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2020 Somebody
License: GPL-2+
 The text of the licence.

Files: data/textures/*
       data/sky.png
Copyright: 2021 Another
License: CC-BY-SA-4.0

Files: data/textures/brick?.png
License: CC0-1.0

Files: debian/*
License: Expat
"""


def photograph(seed, height=260, width=300):
    """Smooth coloured noise, to which the sensor adds its own."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (12, 16, 3)).astype(np.float32)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + random.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)


def encode(image, suffix=".png"):
    return bytes(cv2.imencode(suffix, image)[1])


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo("./" + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def write_deb(path, files):
    """An `ar` archive as dpkg-deb writes it; one entry has an odd size."""
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": b"odd", "data.tar.gz": tar(files)}
    content = b"!<arch>\n"
    for name, data in parts.items():
        content += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
        content += data + b"\n" * (len(data) % 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def downloads(tmp_path):
    """A folder in which three packages have been downloaded already."""
    folder = tmp_path / "downloads"
    pictures = {f"usr/share/games/x/textures/rock{n}.png": photograph(n) for n in range(3)}
    pictures["usr/share/games/x/textures/brick1.png"] = photograph(3)
    pictures["usr/share/games/x/textures/rock1_n.png"] = photograph(4)
    pictures["usr/share/games/x/textures/flat.png"] = np.full((260, 300, 3), 80, np.uint8)
    files = {name: encode(image) for name, image in pictures.items()}
    files["usr/share/games/x/textures/small.png"] = encode(photograph(5, 200, 260))
    files["usr/share/games/x/textures/again.jpg"] = encode(photograph(0), ".jpg")
    files["usr/share/games/x/more.pk3"] = zipped({"textures/inside.png": encode(photograph(6))})
    files["usr/share/games/x/screens/one.png"] = encode(photograph(7))
    files["usr/share/doc/x-data/copyright"] = COPYRIGHT.encode()
    write_deb(folder / "debian/x-data/x-data_1%3a2.0-1_all.deb", files)
    wheel = {
        "y/images/one.png": encode(photograph(10)),
        "y-3.1.dist-info/METADATA": b"Name: y\nLicense: BSD-3-Clause\n\nText",
    }
    place = folder / "pypi/y/y-3.1-py3-none-any.whl"
    place.parent.mkdir(parents=True)
    place.write_bytes(zipped(wheel))
    module = {
        "package/img/one.png": encode(photograph(20)),
        "package/package.json": b'{"name": "z", "license": "MIT"}',
    }
    place = folder / "npm/z/z-0.4.0.tgz"
    place.parent.mkdir(parents=True)
    place.write_bytes(tar(module))
    return folder


@pytest.fixture
def sources(monkeypatch):
    sources = (
        gather.Source("debian", "x-data", "textures/"),
        gather.Source("pypi", "y", "images/"),
        gather.Source("npm", "z", "img/"),
    )
    monkeypatch.setattr(gather, "SOURCES", sources)


@pytest.fixture
def old(tmp_path):
    """A photograph that was there before: rock2, smaller and compressed."""
    folder = tmp_path / "old"
    folder.mkdir()
    small = cv2.resize(photograph(2), (150, 130), interpolation=cv2.INTER_AREA)
    (folder / "old.jpg").write_bytes(encode(small, ".jpg"))
    return folder


def test_photographs_are_found_in_packages(downloads, sources, old):
    photos = gather.search(old, downloads)
    found = {Path(photo.file).name: photo for photo in photos}
    assert set(found) == {"rock0.png", "rock1.png", "brick1.png", "inside.png", "one.png"}
    assert len(photos) == 6  # two are called one.png
    assert found["rock0.png"].licence == "CC-BY-SA-4.0"
    assert found["rock0.png"].version == "1:2.0-1"
    assert found["brick1.png"].licence == "CC0-1.0"
    assert {(p.kind, p.version, p.licence) for p in photos if p.kind != "debian"} == {
        ("pypi", "3.1", "BSD-3-Clause"),
        ("npm", "0.4.0", "MIT"),
    }
    assert found["rock0.png"].sha256 == sha256(encode(photograph(0))).hexdigest()


def test_a_package_without_a_licence_is_refused(downloads, old, monkeypatch):
    write_deb(downloads / "debian/w/w_1_all.deb", {"pictures/one.png": encode(photograph(30))})
    monkeypatch.setattr(gather, "SOURCES", (gather.Source("debian", "w", ""),))
    with pytest.raises(InputError, match="w: no licence found for pictures"):
        gather.search(old, downloads)


@pytest.mark.parametrize(
    ("file", "licence"),
    [
        ("usr/share/games/x/textures/rock.png", "CC-BY-SA-4.0"),
        ("usr/share/games/x/textures/deep/rock.png", "CC-BY-SA-4.0"),
        ("usr/share/games/x/textures/brick1.png", "CC0-1.0"),
        ("usr/share/games/x/textures.pk3/rock.png", "CC-BY-SA-4.0"),
        ("usr/share/games/x/sky.png", "CC-BY-SA-4.0"),
        ("usr/share/games/x/bluesky.png", "GPL-2+"),
        ("usr/share/games/x/ground.png", "GPL-2+"),
    ],
)
def test_the_last_matching_stanza_has_the_licence(file, licence):
    assert gather.find_licence("debian", {"copyright": COPYRIGHT}, file) == licence


def test_a_qt_resource_is_read():
    names = b"".join(struct.pack(">HI", len(n), 0) + n.encode("utf-16-be") for n in ("a", "b.png"))
    nodes = struct.pack(">IHIIQ", 0, 2, 1, 1, 0)  # the root, with one folder
    nodes += struct.pack(">IHIIQ", 0, 2, 1, 2, 0)  # "a", with one file
    nodes += struct.pack(">IHHHIQ", 8, 0, 0, 0, 0, 0)  # "b.png"
    contents = struct.pack(">I", 4) + b"data"
    start = 20
    places = (start + len(contents) + len(names), start, start + len(contents))
    resource = b"qres" + struct.pack(">4I", 2, *places) + contents + names + nodes
    files = dict(gather._inside("x.rcc", resource))
    assert files == {"x.rcc/a/b.png": b"data"}


def test_packages_are_downloaded_into_a_folder_that_is_removed(tmp_path, monkeypatch):
    used = []

    def download(kind, package, wanted, folder):
        folder.mkdir(exist_ok=True)
        (folder / "package").write_bytes(b"")
        used.append(folder.resolve())
        raise InputError("no network here")

    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(gather, "download", download)
    photo = gather.Photo("pypi", "a", "1", "a.png", "CC0", "0")
    monkeypatch.setattr(gather, "read_list", lambda: [photo])
    assert gather.main(["fetch", str(tmp_path / "photos")]) == 1  # none came
    assert not list(here.iterdir())
    assert not used[0].exists()


def test_fetch_takes_only_what_the_list_has(downloads, sources, old, tmp_path, monkeypatch, capsys):
    photos = gather.search(old, downloads)
    changed = [*photos[1:], photos[0]._replace(sha256="0" * 64)]
    monkeypatch.setattr(gather, "LIST", tmp_path / "photos.csv")
    gather.write_list(changed)
    assert gather.read_list(tmp_path / "photos.csv") == changed
    monkeypatch.setattr(gather, "read_list", lambda: changed)
    command = ["fetch", str(tmp_path / "full"), "--downloads", str(downloads), "--at-least"]
    capsys.readouterr()
    assert gather.main([*command, "5"]) == 0
    assert photos[0].file in capsys.readouterr().err
    stored = sorted((tmp_path / "full").iterdir())
    assert {sha256(path.read_bytes()).hexdigest() for path in stored} == {
        photo.sha256 for photo in photos[1:]
    }
    assert gather.main([*command, "6"]) == 1


def folder_of_photos(folder, seeds):
    folder.mkdir()
    for seed in seeds:
        (folder / f"{seed}.png").write_bytes(encode(photograph(seed, 96, 160)))
    return folder


def test_the_pack_fits_and_is_split_by_content(tmp_path):
    new = folder_of_photos(tmp_path / "new", range(100, 130))
    old = folder_of_photos(tmp_path / "old", range(200, 210))
    side, quality = gather.pack(new, old, tmp_path / "packed", 100_000)
    files = {path.name: path for path in (tmp_path / "packed").rglob("*.webp")}
    assert len(files) == 40
    size = sum(path.stat().st_size for path in files.values())
    assert size <= 100_000
    assert (side, quality) in gather.PACKINGS
    for path in new.iterdir():
        digest = sha256(path.read_bytes()).hexdigest()
        folder = "held-out" if is_held_out(digest) else "train"
        assert files[digest[:16] + ".webp"].parent.name == folder
    held_out = {path.name for path in (tmp_path / "packed" / "held-out").iterdir()}
    assert 0 < len(held_out) < 12
    assert not held_out & {path.name for path in (tmp_path / "packed" / "train").iterdir()}
    image = cv2.imread(str(files[min(held_out)]))
    assert image.shape == (96, 128, 3)  # cropped to 4:3, not enlarged
    for number, path in enumerate(sorted(new.iterdir())):
        path.rename(new / f"renamed{number}.png")
    gather.pack(new, old, tmp_path / "again", size - 1)
    again = list((tmp_path / "again").rglob("*.webp"))
    assert sum(path.stat().st_size for path in again) < size
    assert {path.name for path in (tmp_path / "again" / "held-out").iterdir()} == held_out


def test_old_photographs_are_never_held_out(tmp_path):
    new = folder_of_photos(tmp_path / "new", range(5))
    old = folder_of_photos(tmp_path / "old", range(100, 130))
    digests = [sha256(path.read_bytes()).hexdigest() for path in old.iterdir()]
    assert any(map(is_held_out, digests))
    gather.pack(new, old, tmp_path / "packed", 1_000_000)
    train = {path.stem for path in (tmp_path / "packed" / "train").iterdir()}
    assert {digest[:16] for digest in digests} <= train


def test_a_pack_that_cannot_fit_is_refused(tmp_path, capsys):
    new, old = (folder_of_photos(tmp_path / name, range(2)) for name in ("new", "old"))
    command = ["pack", str(new), str(old), "-o", str(tmp_path / "packed"), "--megabytes", "0.0001"]
    assert gather.main(command) == 2
    assert "4 photographs do not fit into 0.0001 MB" in capsys.readouterr().err
    assert gather.main([*command[:4], str(new)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_one_in_ten_is_held_out():
    digests = [sha256(str(number).encode()).hexdigest() for number in range(2000)]
    assert 150 < sum(map(is_held_out, digests)) < 250
    assert is_held_out(f"{20:064x}")
    assert not is_held_out(f"{21:064x}")


def test_the_list_is_whole():
    photos = gather.read_list()
    assert len(photos) >= 1000
    assert len({photo.sha256 for photo in photos}) == len(photos)
    assert all(photo.licence and len(photo.sha256) == 64 for photo in photos)
    held_out = Counter(is_held_out(photo.sha256) for photo in photos)
    assert 0.07 < held_out[True] / len(photos) < 0.13
    known = {(source.kind, source.package) for source in gather.SOURCES}
    assert {photo[:2] for photo in photos} <= known
