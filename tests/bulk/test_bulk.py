"""Bulk runs: each row gives its outputs, errors are rows, and only what is missing is computed."""

import json
import operator
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from multiprocessing import Pipe
from pathlib import Path
from threading import Event, Timer
from time import monotonic

import fake_trees
import numpy as np
import pytest
import torch
from bulk_runs import (
    Silent,
    contents,
    journal_of,
    know_motion,
    make_job,
    run_bulk,
    write_frames,
    write_pairs,
)
from clips import read_rows, write_video

import dicl_flow
from dicl_flow.bulk import engines, writing
from dicl_flow.bulk.job import Settings, finished, marker_name, sha256_of
from dicl_flow.bulk.manifest import UNKNOWN_FLOWS, Row, read_manifest, write_manifest
from dicl_flow.bulk.storage import encode_table, open_storage
from dicl_flow.bulk.worker import Decoder, SharedCalls, Worker, measure, to_grid
from dicl_flow.bulk.writing import PartsFolder, Writer
from dicl_flow.errors import InputError
from dicl_flow.estimation.inputs import image_batch
from dicl_flow.files import atomic, read_flow, read_image
from dicl_flow.video import Moment, Selection, open_source
from dicl_flow.video.frames import video_from

PAIRS = [("f0.png", "f1.png"), ("f1.png", "f2.png"), ("f2.png", "f3.png"), ("f3.png", "f0.png")]


@pytest.fixture
def pairs(tmp_path):
    """A manifest of four pairs."""
    return write_pairs(write_frames(tmp_path) / "manifest.csv", PAIRS)


@pytest.fixture
def known(monkeypatch):
    know_motion(monkeypatch)


def table(out, kind="scores"):
    return [row for path in sorted((out / kind).iterdir()) for row in read_rows(path)]


# --- manifests ----------------------------------------------------------------------------------


def test_rows_of_a_manifest_keep_their_text_and_count(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(
        "path,image1,image2,start,end,stride,flows\n"
        ",a.png,b ü.png,,,,\nclip.mp4,,,,,,\nclip.mp4,,,10,31,2,\nclip.mp4,,,1s,,,7\n"
    )
    manifest = read_manifest(str(path))
    assert manifest.rows(0, 1) == [Row("a.png", "b ü.png")]
    assert manifest.rows(2, 3) == [Row(path="clip.mp4", start="10", end="31", stride="2")]
    assert manifest.counts.tolist() == [1, UNKNOWN_FLOWS, 10, 7]
    assert manifest.root == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image1,imgae2\na,b\n", "unknown column 'imgae2'; did you mean 'image2'"),
        ("start,end\n1,2\n", "has no column path"),
        ("image1,image2\na\n", "line 2: the number of entries is 1, that of the first line 2"),
        ("image1,image2\na,\n", "row 1: a row needs path, or both image1 and image2"),
        ("image1,image2\na\x1fb,c\n", "row 1: '.x1f' cannot be part of an entry"),
        (f"path,flows\na,{'9' * 19}\n", "at most 18 digits"),
        ("path,path\na,b\n", "has two columns path"),
        ("image1,image2,path\na,b,c\n", "row 1: a row has either path or image1 and image2"),
        ("image1,image2,start\na,b,3\n", "are for clips"),
        ("image1,image2\n", "lists nothing to estimate"),
        ("", "has no column path"),
    ],
)
def test_a_wrong_manifest_says_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_manifest(str(path))


def test_parquet_and_csv_hold_the_same_rows(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    rows = [Row(path="a.mp4", start="3", flows="5"), Row(path="b.mp4", end="2.5s")]
    found = []
    for suffix in ("csv", "parquet"):
        write_manifest(tmp_path / f"m.{suffix}", rows)
        found.append(read_manifest(str(tmp_path / f"m.{suffix}")).sha256())
    assert found[0] == found[1]
    (tmp_path / "x.parquet").write_text("no table")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_manifest(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_take_names_that_are_not_utf8(kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    data = encode_table({"clip": ["f\udcff.png", "ü"]}, kind, {"clip": str})
    assert b"\xff" in data or "f\ufffd.png".encode() in data


def test_a_folder_tree_and_a_pattern_become_clips(tmp_path):
    write_frames(tmp_path / "b" / "shot10", 2)
    write_frames(tmp_path / "b" / "shot9", 3)
    for name in ("b/film.mp4", "a.mov", ".hidden.mov", "notes.txt", "alone.png"):
        (tmp_path / name).write_bytes(b"x")
    names = [str(Path(row.path).relative_to(tmp_path)) for row in read_manifest(str(tmp_path))]
    assert names == ["a.mov", "b/film.mp4", "b/shot9", "b/shot10"]
    pattern = [row.path for row in read_manifest(f"{tmp_path}/**/f[01].png")]
    assert pattern == [f"{tmp_path}/b/{shot}/f[01].png" for shot in ("shot9", "shot10")]
    with pytest.raises(FileNotFoundError, match="no manifest, folder or video"):
        read_manifest(str(tmp_path / "nowhere"))


# --- plans --------------------------------------------------------------------------------------


def test_segments_depend_on_rows_settings_and_weights_only(tmp_path, pairs):
    names = make_job(pairs, "anywhere", segment=2)[1].names
    assert len(names) == 2
    assert make_job(pairs, "elsewhere", segment=2)[1].names == names
    assert make_job(pairs, "o", "other", segment=2)[1].names[0] != names[0]
    assert make_job(pairs, "o", segment=2, occlusion=True)[1].names[0] != names[0]
    write_pairs(pairs, [*PAIRS[:3], ("f3.png", "f1.png")])
    changed = make_job(pairs, "o", segment=2)[1].names
    assert (changed[0] == names[0], changed[1] == names[1]) == (True, False)


def test_clips_are_never_cut(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("path,flows\na.mp4,3\nb.mp4,3\nc.mp4,20\nd.mp4,1\n")
    _, plan = make_job(path, "o", segment=6)
    assert [[row.path[0] for row in segment.rows] for segment in plan] == [["a", "b"], ["c"], ["d"]]
    assert [plan.count(number) for number in range(len(plan))] == [6, 20, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scores": False}, "nothing to write"),
        ({"grid": 8}, "`grid` is for `fields`"),
        ({"fields": "npz"}, "unknown `fields` 'npz'"),
        ({"flows": "jpg"}, "unknown `flows` 'jpg'"),
        ({"decoder": "x"}, "unknown `decoder`"),
        ({"segment": 0}, "`segment` must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Settings("w", table="csv", **settings)


# --- scores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_confidence", [0.0, 0.3])
def test_measured_numbers_are_those_of_numpy(min_confidence):
    generator = torch.Generator().manual_seed(0)
    answer = torch.randn(1, 4, 30, 50, generator=generator)
    answer[:, 2:] = torch.rand(2, 30, 50, generator=generator)
    numbers = measure(answer, min_confidence).numpy()
    known = answer[0, 2].numpy() >= min_confidence
    vectors = answer[0, :2].numpy()[:, known].astype(np.float64)
    lengths = np.hypot(*vectors)
    expected = [
        *(lengths.mean(), *vectors.mean(1), (lengths > 0.5).mean()),
        *np.percentile(lengths, [50, 95]),
        *(lengths.max(), known.mean(), answer[0, 2].mean(), answer[0, 3].mean()),
    ]
    assert numbers[:10] == pytest.approx(expected, rel=1e-4)
    assert np.isnan(numbers[10])  # the occluded share needs both directions
    assert measure(torch.cat([answer, -answer], 1)).numpy()[10] >= 0


def test_large_frames_are_measured_on_a_grid():
    generator = torch.Generator().manual_seed(0)
    answer = torch.rand(1, 4, 600, 900, generator=generator)
    answer[0, 0] += 4 * torch.linspace(0, 1, 900)
    numbers = measure(answer).numpy()
    lengths = np.hypot(*answer[0, :2].numpy())
    assert numbers[4:6] == pytest.approx(np.percentile(lengths, [50, 95]), rel=0.01)
    assert numbers[6] == lengths.max()
    small = numbers[11:].reshape(2, 64, 96)
    assert small[0].mean(0) == pytest.approx(np.linspace(0.5, 4.5, 96), abs=0.1)


def test_a_grid_has_the_means_of_known_vectors():
    answer = torch.ones(1, 3, 5, 7)
    answer[0, 0] = torch.arange(35.0).reshape(5, 7)
    answer[0, 2, 0, 0] = 0
    field = to_grid(answer, 4, 0.5).numpy()
    assert field.shape == (2, 2, 2)
    whole = answer[0, 0].numpy()
    assert field[0, 0, 0] == pytest.approx(whole[:4, :4].flatten()[1:].mean())
    assert field[0, 1, 1] == pytest.approx(whole[4:, 4:].mean())
    answer[0, 2] = 0
    assert to_grid(answer, 4, 0.5).isnan().all()
    assert to_grid(answer, 1, 0.5).isnan().all()


# --- decoding -----------------------------------------------------------------------------------


def test_a_start_in_seconds_is_found_by_seeking(tmp_path):
    frames = fake_trees.moving_frames(40, (32, 48))[0]
    clip = write_video(tmp_path / "clip.mp4", frames, codec="mpeg4", pix_fmt="yuv420p")
    assert next(video_from(clip, 3.05).shots()).name not in ("frame_000000", "frame_000031")
    (tmp_path / "m.csv").write_text("path,start,end,stride\nclip.mp4,3.05s,3.5s,2\n")
    job, plan = make_job(tmp_path / "m.csv", "o")
    (_, _, pairs), *_ = Decoder(job, plan[0].rows, 0).rows()
    (pair,) = pairs
    assert (pair.frame1, pair.frame2, pair.time) == ("frame_000031", "frame_000033", 3.1)
    whole = [shot.read() for shot in open_source(str(clip)).shots()]
    assert np.array_equal(pair.images[0], whole[31])
    assert np.array_equal(pair.images[1], whole[33])
    with pytest.raises(InputError, match="the start \\(9 s\\) is past the end"):
        next(Selection(Moment(9, True)).frames(video_from(clip, 9)))


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_writes_what_was_asked_for(tmp_path, pairs, known):
    out = tmp_path / "out"
    job, plan = make_job(pairs, out, segment=3, fields="npy", grid=8, flows="flo", occlusion=True)
    run_bulk(job, plan)
    rows = table(out)
    assert [row["key"] for row in rows] == [f"00000000{number}_000000" for number in range(4)]
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["weights"] for row in rows} == {"stand-in"}
    first = rows[0]
    assert float(first["mean_length"]) == pytest.approx(4, abs=0.03)
    assert float(first["mean_share"]) == pytest.approx(4 / 40, abs=0.001)
    assert (first["width"], first["height"], first["density"]) == ("32", "24", "1.0")
    assert len(table(out, "clips")) == 4
    flow = read_flow(out / "flows" / plan.names[0] / "000000000_000000.flo")
    assert flow.shape == (24, 32, 2)
    with tarfile.open(out / "fields" / f"{plan.names[0]}.tar") as shard:
        assert shard.getnames()[:2] == ["000000000_000000.flow.npy", "000000000_000000.json"]
        field = np.load(BytesIO(shard.extractfile(shard.getmembers()[0]).read()))
        about = json.load(shard.extractfile(shard.getmembers()[1]))
    assert (field.dtype, field.shape) == (np.float16, (3, 4, 2))
    assert np.allclose(field[0, 0], flow[0, 0], atol=0.01)
    assert about["grid"] == 8
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["flows"], summary["failed"], sum(summary["histogram"])) == (4, 0, 4)
    assert len(summary["fastest"]) == 4
    assert read_image(out / "summary.png").ndim == 3


@pytest.mark.heavy
@pytest.mark.parametrize("occlusion", [False, True])
def test_the_tables_have_the_sharpness_of_the_match(tmp_path, pairs, tiny_weights, occlusion):
    job, plan = make_job(pairs, tmp_path / "out", sha256_of(tiny_weights), occlusion=occlusion)
    run_bulk(replace(job, weights=str(tiny_weights)), plan)
    estimator = dicl_flow.load(tiny_weights, "cpu", backend="plain")
    rows, clips = table(tmp_path / "out"), table(tmp_path / "out", "clips")
    for names, row, clip in zip(PAIRS, rows, clips, strict=True):
        images = (image_batch(tmp_path / name)[0] for name in names)
        entropy = estimator.pipeline.measure(*images)[1][:, 0]
        assert float(row["sharpness"]) == pytest.approx(float(1 - entropy.mean()), abs=1e-4)
        assert clip["sharpness"] == row["sharpness"]
        assert (row["occluded"] != "") == occlusion


def test_only_what_is_missing_or_damaged_is_computed(tmp_path, pairs, known):
    out = tmp_path / "out"
    job, plan = make_job(pairs, out, segment=1)
    with pytest.raises(InputError, match="`shard` must be I/N"):
        run_bulk(job, plan, shard=(3, 2))
    run_bulk(job, plan, shard=(1, 2))
    assert sorted(finished(job.storage())) == [plan.names[0], plan.names[2]]
    run_bulk(job, plan)
    whole = contents(out)
    assert [e["event"] for e in journal_of(out)].count("segment") == 4
    (out / "scores" / f"{plan.names[1]}.csv").write_text("short")
    (out / "segments" / f"{plan.names[3]}.json").write_text("{")
    watcher = Silent()
    run_bulk(job, plan, watcher=watcher)
    assert watcher.left == [1, 3]
    assert contents(out) == whole
    before = (out / "summary.json").read_bytes()
    run_bulk(job, plan, watcher=watcher)
    assert watcher.left == []
    assert (out / "summary.json").read_bytes() == before


def test_other_settings_on_an_output_are_refused_by_name(tmp_path, pairs, known):
    out = tmp_path / "out"
    run_bulk(*make_job(pairs, out))
    with pytest.raises(InputError, match="`occlusion` was off and is on now"):
        run_bulk(*make_job(pairs, out, occlusion=True))
    with pytest.raises(InputError, match="`tables` was 1 and is 2 now"):
        run_bulk(*make_job(pairs, out, tables=2))
    write_pairs(pairs, PAIRS[:2])
    with pytest.raises(InputError, match=r"`manifest` was .{12}… and is"):
        run_bulk(*make_job(pairs, out))


def test_broken_inputs_are_rows(tmp_path, known):
    frames = write_frames(tmp_path)
    (tmp_path / "zero.png").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    fake_trees.write_image(tmp_path / "small.png", np.zeros((8, 8, 3), np.uint8))
    clip = write_video(tmp_path / "clip.mkv", fake_trees.moving_frames(4, (24, 32))[0])
    (tmp_path / "cut.mp4").write_bytes(clip.read_bytes()[:200])
    manifest = tmp_path / "m.csv"
    manifest.write_text(
        "image1,image2,path,stride\nf0.png,zero.png,,\nf0.png,no.png,,\nf0.png,folder,,\n"
        "f0.png,small.png,,\n,,cut.mp4,\n,,no.mp4,\n,,folder,\n,,clip.mkv,0\nf0.png,f1.png,,\n"
        ",,clip.mkv,\n"
    )
    job, plan = make_job(manifest, tmp_path / "out")
    run = run_bulk(job, plan)
    assert frames.is_dir()
    rows = table(tmp_path / "out")
    expected = [
        "zero.png is empty (0 bytes)",
        "no such file: no.png",
        "folder is a folder; expected a file",
        "the two images must have one size, got 32x24 and 8x8",
        "cut.mp4 cannot be decoded as a video",
        "no video, folder or camera no.mp4",
        "no images in folder",
        "`stride` must be at least 1",
        *["ok"] * 4,
    ]
    for row, status in zip(rows, expected, strict=True):
        assert row["status"].startswith(status)
    assert run.failed == 8
    clips = table(tmp_path / "out", "clips")
    assert [clip["flows"] for clip in clips] == ["0"] * 8 + ["1", "3"]


def test_too_many_errors_end_a_run_and_retry_repairs_it(tmp_path, pairs, known):
    (tmp_path / "f3.png").rename(tmp_path / "away.png")
    job, plan = make_job(pairs, tmp_path / "out", segment=1)
    with pytest.raises(InputError, match="failed: 2 flows, more than `max_errors=1`"):
        run_bulk(job, plan, max_errors=1)
    assert run_bulk(job, plan).failed == 2
    (tmp_path / "away.png").rename(tmp_path / "f3.png")
    assert run_bulk(job, plan).failed == 2
    assert run_bulk(job, plan, retry=True).failed == 0
    assert {row["status"] for row in table(tmp_path / "out")} == {"ok"}


def test_what_another_run_computes_is_waited_for(tmp_path, pairs, known, monkeypatch):
    job, plan = make_job(pairs, tmp_path / "out", segment=1)
    claim = PartsFolder(job.storage(), plan.names[1])
    assert not PartsFolder(job.storage(), plan.names[1]).held
    seen = []

    def wait(seconds):
        seen.append(len(finished(job.storage())))
        claim.release()  # the other run has died

    monkeypatch.setattr(engines, "sleep", wait)
    run_bulk(job, plan)
    assert seen == [3]
    assert len(finished(job.storage())) == 4


def test_without_locks_two_processes_keep_their_parts_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "lock", lambda file: None)
    storage = open_storage(str(tmp_path))
    monkeypatch.setattr(writing, "node", lambda: "one")
    mine = PartsFolder(storage, "000000-a")
    (mine.path / "0").write_bytes(b"mine")
    monkeypatch.setattr(writing, "node", lambda: "two")
    other = PartsFolder(storage, "000000-a")
    (other.path / "0").write_bytes(b"other")
    writing.sweep(storage)
    other.publish({"scores/x.csv": other.path / "0"}, {})
    mine.publish({"scores/x.csv": mine.path / "0"}, {})
    assert storage.read("scores/x.csv") == b"mine"


def test_a_stopped_run_leaves_no_lock(tmp_path, pairs, known):
    job, plan = make_job(pairs, tmp_path / "out", segment=1)
    outcomes = Worker(job, "cpu").run(iter(plan))
    next(outcomes)
    outcomes.close()
    assert not list((tmp_path / "out" / ".parts").iterdir())
    (tmp_path / "out/.parts" / plan.names[0] / "vm-1").mkdir(parents=True)  # as if killed
    run_bulk(job, plan)
    assert not (tmp_path / "out" / ".parts").exists()


def test_motion_beyond_a_format_is_a_row(tmp_path, pairs, known, monkeypatch):
    monkeypatch.setattr("clips.KnownMotion.motion", (900.0, 0.0))
    job, plan = make_job(pairs, tmp_path / "out", fields="png")
    assert run_bulk(job, plan).failed == 4
    assert "KITTI PNG can store motion" in table(tmp_path / "out")[0]["status"]


def test_the_markers_of_a_store_are_those_of_a_folder(tmp_path, pairs, known):
    pytest.importorskip("pyarrow", reason="stores need pyarrow")
    job, plan = make_job(pairs, tmp_path / "out", segment=2, fields="npy")
    run_bulk(job, plan)
    remote, _ = make_job(pairs, f"memory://bulk-{tmp_path.name}/out", segment=2, fields="npy")
    run_bulk(remote, plan)
    watcher = Silent()
    run_bulk(remote, plan, watcher=watcher)
    assert watcher.left == []
    for name in plan.names:
        marker = marker_name(name)
        assert remote.storage().read(marker) == job.storage().read(marker)


def test_inputs_in_a_store_are_read(tmp_path, pairs, known):
    pytest.importorskip("pyarrow", reason="stores need pyarrow")
    address = f"memory://inputs-{tmp_path.name}"
    store = open_storage(address)
    for path in tmp_path.iterdir():
        store.write(f"shots/{path.name}", path.read_bytes())
    assert [row.path for row in read_manifest(address)] == [f"{address}/shots"]
    job, plan = make_job(f"{address}/shots/manifest.csv", tmp_path / "out")
    run_bulk(job, plan)
    assert [row["status"] for row in table(tmp_path / "out")] == ["ok"] * 4
    clips, plan = make_job(address, tmp_path / "clips")
    run_bulk(clips, plan)
    assert [row["status"] for row in table(tmp_path / "clips")] == ["ok"] * 3


def test_small_frames_that_pairs_share_are_made_once():
    made = []
    frames = [np.full((2, 2), number) for number in range(3)]
    small = SharedCalls(lambda image: made.append(image) or image[0], operator.is_)
    pairs = [[*map(small.submit, two)] for two in pairwise(frames)]
    found = [[frame.result()[0] for frame in pair] for pair in pairs]
    assert found == [[0, 1], [1, 2]]
    assert len(made) == 3


def test_several_threads_may_read_one_file_of_a_store(tmp_path):
    pytest.importorskip("pyarrow", reason="stores need pyarrow")
    store, data = open_storage(f"memory://shared-{tmp_path.name}"), bytes(range(256)) * 4096
    store.write("frame.png", data)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == data for found in pool.map(store.read, ["frame.png"] * 400))


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_commands_run_list_and_verify(tmp_path, pairs, run, known, tiny_weights):
    out, usual = tmp_path / "out", ("-w", tiny_weights, "--device", "cpu")
    code, printed, _ = run("bulk", pairs, "-o", out, "--table", "csv", "--json", *usual)
    assert code == 0
    assert json.loads(printed)["written"] == [str(out)]
    assert json.loads(printed)["flows"] == 4
    code, printed, _ = run("bulk", "verify", out, *usual, "--json", "--samples", 2)
    assert code == 0
    report = json.loads(printed)
    assert (report["sampled"], report["largest_difference"], report["problems"]) == (2, 0, [])
    scores = next((out / "scores").iterdir())
    scores.write_text(scores.read_text().replace("ok", "on"))
    code, _, errors = run("bulk", "verify", out, *usual, "--samples", 0)
    assert (code, "differs from what was written" in errors) == (2, True)
    code, printed, _ = run("bulk", "list", tmp_path, "-o", tmp_path / "list.csv", "--json")
    assert json.loads(printed)["clips"] == 1
    assert read_manifest(str(tmp_path / "list.csv")).rows(0, 1)[0].flows == "3"
    code, printed, _ = run("bulk", pairs, "-o", tmp_path / "dry", "--dry-run", "--json", *usual)
    forecast = json.loads(printed)
    assert (forecast["flows"], forecast["tried"]) == (4, 3)
    assert not (tmp_path / "dry").exists()


@pytest.mark.usefixtures("known")
def test_failed_flows_are_explained_and_have_their_own_exit_code(tmp_path, run, tiny_weights):
    write_frames(tmp_path)
    (tmp_path / "zero.png").write_bytes(b"")
    missing = [("f0.png", f"no{number}.png") for number in range(7)] + [("lost.png", "f0.png")]
    rows = [("f0.png", "f1.png"), *missing, ("f0.png", "zero.png")]
    manifest = write_pairs(tmp_path / "manifest.csv", rows)
    usual = ("-w", tiny_weights, "--device", "cpu", "--table", "csv", "--segment", 7)
    command = ("bulk", manifest, "-o", tmp_path / "out", *usual)
    explained = [
        "failed: 8 flows, for example f0.png: no such file: no0.png",
        "failed: 1 flow, f0.png: zero.png is empty (0 bytes)",
    ]
    for _ in range(2):  # the second time nothing is computed
        code, printed, errors = run(*command, "--json")
        lines = errors.splitlines()
        assert (code, lines[:-1]) == (3, explained)
        assert lines[-1].startswith("9 failed in all; --retry computes them again, --max-errors 9")
        assert [count for count, *_ in json.loads(printed)["reasons"]] == [8, 1]
    assert run(*command, "--quiet")[::2] == (3, errors)
    code, _, errors = run(*command, "--max-errors", 9)
    assert (code, errors.splitlines()) == (0, explained)
    assert run(*command, "--max-errors", 9, "--quiet") == (0, "", "")
    code, _, errors = run(*command, "--max-errors", 8)
    assert (code, "more than --max-errors 8" in errors) == (2, True)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("damage", ["one byte", "a cut table", "the marker"])
def test_damage_that_verify_finds_is_repaired_by_the_next_run(
    tmp_path, pairs, run, tiny_weights, damage
):
    out, usual = tmp_path / "out", ("-w", tiny_weights, "--device", "cpu", "--json")
    command = ("bulk", pairs, "-o", out, "--table", "csv", "--segment", 1, *usual)
    verify = ("bulk", "verify", out, "--samples", 9, *usual)
    assert run(*command)[0] == 0
    whole = contents(out)
    name = sorted(path.stem for path in (out / "scores").iterdir())[2]
    table = out / "scores" / f"{name}.csv"
    if damage == "one byte":  # the run trusts sizes: reading all files each time would be slow
        table.write_bytes(table.read_bytes().replace(b"ok", b"on"))
        assert json.loads(run(*command)[1])["new_rows"] == 0
    elif damage == "a cut table":  # of which no flow is computed again
        table.write_bytes(table.read_bytes()[:-200])
    else:
        (out / marker_name(name)).write_text("{")
    code, printed, errors = run(*verify)
    assert (code, json.loads(printed)["damaged"]) == (2, [name])
    assert "damaged segments: 1; with --repair, the next run computes them again" in errors
    code, _, errors = run(*verify, "--repair")
    assert (code, "damaged segments: 1; the next run computes them again" in errors) == (2, True)
    code, printed, errors = run(*verify)
    assert (code, errors) == (2, "missing: 1 segment; the run is not finished\n")
    assert json.loads(run(*command)[1])["new_rows"] == 1
    assert contents(out) == whole
    assert run(*verify)[0] == 0


@pytest.mark.usefixtures("known")
def test_without_pyav_videos_are_read_with_opencv(tmp_path, run, tiny_weights, monkeypatch):
    clip = write_video(tmp_path / "clip.mkv", fake_trees.moving_frames(3, (24, 32))[0])
    monkeypatch.setattr("dicl_flow.cli.bulk.find_spec", lambda name: None)
    usual = ("--table", "csv", "-w", tiny_weights, "--device", "cpu")
    code, _, errors = run("bulk", clip, "-o", tmp_path / "out", *usual)
    assert (code, "videos are read with OpenCV" in errors) == (0, True)
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["decoder"] == "opencv"
    assert [row["status"] for row in table(tmp_path / "out")] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{m} -o out --shard 5/4", "--shard must be I/N"),
        ("{m} -o out --shard 0/4", "--shard must be I/N"),
        ("{m} -o out --grid 4", "--grid is for --fields"),
        ("{m} -o {m}", "is not a folder"),
        ("f0.png -o out", "f0.png is neither a manifest (.csv, .parquet) nor a video"),
        (". -o out", "out is in the folder that is listed"),
        ("no.csv -o out", "no manifest, folder or video no.csv"),
        ("verify {m}", "no bulk output"),
        ("verify nowhere", "no bulk output at nowhere"),
        ("list {m} -o m.txt", "m.txt: the output must end in .csv or .parquet"),
    ],
)
def test_wrong_arguments_are_explained(run, pairs, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, errors = run("bulk", *arguments.format(m=pairs).split())
    assert code == 2
    assert message in errors


def test_the_marker_of_a_segment_is_written_last(tmp_path, pairs, known, monkeypatch):
    job, plan = make_job(pairs, tmp_path / "out", segment=4)
    monkeypatch.setattr("dicl_flow.bulk.writing.encode_json", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_bulk(job, plan)
    assert (tmp_path / "out" / "scores" / f"{plan.names[0]}.csv").exists()
    assert finished(job.storage()) == {}


def test_a_slow_drive_does_not_stop_the_estimates(tmp_path, pairs, known, monkeypatch):
    publish, write, following = PartsFolder.publish, Writer.write, Event()
    written, kept = [], []

    def write_and_tell(writer, *step):
        write(writer, *step)
        written.append(1)
        if len(written) == 3:
            following.set()

    def publish_slowly(claim, *files):
        kept.append(following.wait(60))  # for a flow of the next segment
        publish(claim, *files)

    monkeypatch.setattr(Writer, "write", write_and_tell)
    monkeypatch.setattr(PartsFolder, "publish", publish_slowly)
    job, plan = make_job(pairs, tmp_path / "out", segment=2)
    run_bulk(job, plan)
    assert kept == [True, True]
    assert sorted(finished(job.storage())) == plan.names


def test_outcomes_are_told_while_segments_are_waited_for(tmp_path, pairs, known):
    job, plan = make_job(pairs, tmp_path / "out", segment=2)
    worker = Worker(job, "cpu")

    def arriving():
        for number, segment in enumerate(plan):
            start = monotonic()
            while len(told) < number:
                assert monotonic() < start + 60
                yield None
            yield segment

    for finished_before in (False, True):
        told = []
        for outcome in worker.run(arriving()):
            told.append(outcome)
        assert [outcome.segment for outcome in told] == plan.names
        assert [outcome.marker is None for outcome in told] == [finished_before] * 2


def test_a_process_that_dies_before_it_reads_is_named(pairs):
    _, plan = make_job(pairs, "o", segment=1)
    mine, other = Pipe()
    Timer(0.05, other.close).start()
    with mine, pytest.raises(ChildProcessError, match="the process on cuda:1 has died"):
        next(engines._shared_out(plan, [0, 1, 2], {mine: "cuda:1"}, lambda flows: None))


def test_numbers_of_a_parquet_file_are_those_of_a_csv_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra bulk is not installed")
    from pyarrow import parquet

    path = tmp_path / "list.parquet"
    columns = {"path": ["a", "b"], "start": [1234567.0, None], "end": [2**40, 7]}
    parquet.write_table(pyarrow.table(columns), path)
    rows = read_manifest(str(path)).rows(0, 2)
    assert [(row.start, row.end) for row in rows] == [("1234567", str(2**40)), ("", "7")]
    parquet.write_table(pyarrow.table({"path": [["a"]]}), path)
    with pytest.raises(InputError, match="column path has the type list"):
        read_manifest(str(path))


@pytest.mark.usefixtures("known")
def test_the_summary_names_the_frame_of_every_pair(tmp_path, monkeypatch):
    texts = []

    def note(picture, text):
        texts.append(text)
        return picture

    monkeypatch.setattr("dicl_flow.bulk.run.write_on", note)
    run_bulk(*make_job(write_frames(tmp_path / "shot", 3), tmp_path / "clip"))
    named = [text.partition(" px, ")[2] for text in texts]
    assert {name for name in named if name} == {"shot f0", "shot f1"}
    texts.clear()
    manifest = write_pairs(tmp_path / "shot" / "manifest.csv", PAIRS[:1])
    run_bulk(*make_job(manifest, tmp_path / "pair"))
    assert {text.partition(" px, ")[2] for text in texts} == {"", "f0.png"}
