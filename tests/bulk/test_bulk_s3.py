"""Bulk runs read from S3 and write to it as to a folder."""

from itertools import pairwise

import pytest
from bulk_runs import contents, know_motion, make_job, run_bulk, write_frames, write_pairs
from s3_server import s3_server

from dicl_flow.bulk import storage
from dicl_flow.bulk.manifest import read_manifest
from dicl_flow.bulk.storage import open_storage


@pytest.fixture
def objects(monkeypatch):
    """What is in the store, by /BUCKET/KEY."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with s3_server() as (address, found):
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_REGION": "nowhere",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # else bodies come in chunks
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        storage._opened.cache_clear()  # the server has another address each time
        yield found


@pytest.mark.heavy
def test_the_same_files_are_written_from_and_to_s3(objects, tmp_path, monkeypatch):
    know_motion(monkeypatch)
    write_frames(tmp_path, 4, (16, 24))
    names = [f"s3://bucket/in/f{number}.png" for number in (0, 1, 2, 9)]  # the last is missing
    manifest = write_pairs(tmp_path / "manifest.csv", pairwise(names))
    for path in [*tmp_path.glob("*.png"), manifest]:
        objects[f"/bucket/in/{path.name}"] = path.read_bytes()
    here, plan = make_job(manifest, tmp_path / "here", segment=1, fields="npy")
    there, _ = make_job(manifest, "s3://bucket/out", segment=1, fields="npy")
    assert run_bulk(here, plan).failed == 1
    run_bulk(there, plan)
    written = {name.removeprefix("/bucket/out/"): data for name, data in objects.items()}
    wanted = contents(tmp_path / "here")
    assert {name: written.get(name) for name in wanted} == wanted
    objects.pop(f"/bucket/out/fields/{plan.names[1]}.tar")
    run = run_bulk(there, plan)  # what was lost is computed again
    assert len(run.markers) == 3
    assert (
        objects[f"/bucket/out/fields/{plan.names[1]}.tar"] == wanted[f"fields/{plan.names[1]}.tar"]
    )


def test_a_manifest_and_its_clips_may_be_in_s3(objects, tmp_path):
    for path in write_frames(tmp_path, 3, (16, 24)).glob("*.png"):
        objects[f"/bucket/shots/one/{path.name}"] = path.read_bytes()
    objects["/bucket/shots/list.csv"] = b"path\none\n"
    listed = read_manifest("s3://bucket/shots/list.csv")
    assert (listed.root, listed.rows(0, 1)[0].path) == ("s3://bucket/shots", "one")
    (row,) = read_manifest("s3://bucket/shots").rows(0, 1)
    assert row.path == "s3://bucket/shots/one"
    with pytest.raises(FileNotFoundError, match=r"no such file: s3://bucket/none\.csv"):
        read_manifest("s3://bucket/none.csv")
    assert open_storage("s3://bucket/shots").names() == ["list.csv"]
