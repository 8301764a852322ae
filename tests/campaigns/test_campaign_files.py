"""A slice of the campaign `files`, in this process, and the worker that the whole one uses."""

import json
import os
import sys
import time
from contextlib import suppress
from importlib.util import find_spec

import pytest

from campaigns.files import find, prepare
from campaigns.guided import Guide
from campaigns.report import REPOSITORY, Options, Part
from campaigns.workers import Attempt, attempts
from dicl_flow.errors import InputError

pytestmark = pytest.mark.heavy

DOCS = REPOSITORY / "docs"
COUNTS = {
    **dict.fromkeys(("flo", "pfm", "kitti", "npz", "npy", "flo5", "exr", "st-exr"), 40),
    **dict.fromkeys(("viper", "virtual-kitti", "kitti-disparity", "sintel-disparity"), 20),
    **dict.fromkeys(("png", "jpg", "tiff", "webp", "bmp", "ppm", "other-images"), 40),
    **dict.fromkeys(("recipe", "manifest", "own-manifest", "parquet"), 30),
    **{"safetensors": 10, "video": 10, "legacy": 50},
}
SLOW = ("legacy",)  # its network is that of the paper
NEEDS = {"exr": "OpenEXR", "st-exr": "OpenEXR", "flo5": "h5py", "parquet": "pyarrow", "video": "av"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in COUNTS]
)
def test_damaged_files_are_read_right_or_refused_in_one_sentence(name, tmp_path):
    if name in NEEDS and not find_spec(NEEDS[name]):
        pytest.skip(f"{NEEDS[name]} is not installed")
    attempt = prepare(name, Options(None, seed=24), str(tmp_path))
    found = {number: attempt(number) for number in range(COUNTS[name])}
    assert {number: one.failure for number, one in found.items() if one.failure} == {}
    assert {one.outcome for one in found.values()} <= {"read", "refused"}


def test_a_guide_keeps_files_that_reach_new_code(tmp_path):
    guide, path, kept = Guide(find("flo")), tmp_path / "damaged.flo", []
    whole, *_ = guide.form.seeds()
    for data in (whole, whole, whole[:9], whole[:8]):
        path.write_bytes(data)
        with suppress(InputError):
            guide.form.read(path)
        kept.append(len(guide._files))
    assert kept == [1, 1, 2, 2]


def test_a_guide_leaves_the_trace_of_others_as_it_was(tmp_path):
    """Coverage has one, and would see nothing of the tests after this one."""

    def trace(frame, event, argument):
        return None

    path, before = tmp_path / "whole.flo", sys.gettrace()
    guide = Guide(find("flo"))
    path.write_bytes(guide.form.seeds()[0])
    sys.settrace(trace)
    try:
        guide.form.read(path)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


def bad_luck(folder):
    """What the worker below does for each number."""

    def attempt(number):
        if number == 1:
            os.abort()
        if number == 3:
            time.sleep(60)
        return Attempt("read")

    return attempt


def test_a_worker_that_crashes_or_hangs_is_counted_and_replaced():
    found = dict(attempts(bad_luck, ("",), range(5), seconds=0.1))
    assert [one.outcome for one in found.values()] == ["read", "", "read", "", "read"]
    assert found[1].failure == "crash: the process ended with -6"
    assert found[3].failure.startswith("hangs")


def test_a_report_counts_what_was_tried():
    part = Part()
    part.outcomes["read"] += 3
    part.failures.append("17: crash")
    part.known["a decoder"] += 1
    assert part.tried == 5
    assert part.summary()["failed"] == 1
    assert Options(None, 3).dice("a", 1).random() == Options(9, 3).dice("a", 1).random()


CAMPAIGNS = {"files": "damaged files", "disks": "runs", "kills": "kills", "numbers": "runs"}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_the_page_has_the_total_of_the_reports(name):
    page = (DOCS / "measurements/reliability.md").read_text()
    reports = [json.loads(p.read_text()) for p in (DOCS / "reliability").glob(f"{name}*.json")]
    parts = [part for report in reports for part in report["parts"].values()]
    assert f"{sum(part['tried'] for part in parts):,} {CAMPAIGNS[name]}" in " ".join(page.split())
    assert not any(part["failed"] for part in parts)


@pytest.mark.parametrize(
    "path", sorted((DOCS / "reliability").glob("uploads*")), ids=lambda p: p.stem
)
def test_the_page_has_the_uploads_of_the_report(path):
    page = (DOCS / "measurements/reliability.md").read_text()
    text = " ".join(page.split("## Uploads")[1].split("\n## ")[0].split())
    parts = json.loads(path.read_text())["parts"]
    names = {"images": "damaged images", "videos": "damaged clips", "decoders": "bad decoders"}
    for name, words in names.items():
        assert f"{parts[name]['tried']:,} {words}" in text
    assert f"{parts['good']['tried']:,} good pairs" in text
    before, after = (f"{number:,.0f} MB" for number in parts["server"]["memory_mb"])
    assert f"{before}, then {after}" in text
    if any(part["failed"] for part in parts.values()):
        assert f"found on commit {json.loads(path.read_text())['commit']}" in text
