"""A bulk run that is killed at any moment is resumed by the same command, bit for bit."""

import random
import signal
from dataclasses import replace
from multiprocessing import active_children

import pytest
from bulk_runs import contents, journal_of, make_job, run_bulk, write_frames, write_pairs
from children import SUPPORT, run_forked_child

from dicl_flow.bulk.engines import run_local
from dicl_flow.bulk.job import sha256_of

CHILD = SUPPORT / "signal_child.py"
PLACES = (
    "dicl_flow.bulk.writing:HashedFile.write",
    "dicl_flow.bulk.writing:Writer.write",
    "dicl_flow.bulk.writing:SegmentFiles.finish",
    "dicl_flow.bulk.storage:LocalFolder.remove",
    "dicl_flow.bulk.storage:LocalFolder.publish",
    "dicl_flow.bulk.storage:LocalFolder.write",
    "dicl_flow.bulk.writing:PartsFolder.publish",
    "dicl_flow.bulk.run:Journal.note",
)
"""Steps of a run, after which it is killed: before, between and after files and their marker."""


def survive(folder, run, weights, kills, flows):
    """Kill a run `kills` times, finish it, and compare it with one that was left alone."""
    frames = [f"f{number}.png" for number in range(8)]
    write_frames(folder, len(frames), (16, 24))
    dice = random.Random(kills)
    pairs = [dice.choices(frames, k=2) for _ in range(flows)]
    manifest = write_pairs(folder / "manifest.csv", pairs)
    how = ("--table", "csv", "--fields", "npy", "--grid", 4, "--flows", "flo", "--segment", 2)
    how += ("-w", weights, "--device", "cpu", "--precision", "fp32", "--quiet")
    killed, out = folder / "killed", folder / "alone"
    places = [PLACES[(number * 3 + kills) % len(PLACES)] for number in range(kills)]
    command = ("bulk", manifest, "-o", killed, *how)
    for place in places:
        child = run_forked_child(CHILD, "SIGKILL", dice.randint(1, 4), place, *command)
        assert child.returncode == -signal.SIGKILL, (place, child.stderr)
    assert run("bulk", manifest, "-o", killed, *how)[0] == 0
    assert run("bulk", manifest, "-o", out, *how)[0] == 0
    assert contents(killed) == contents(out)
    return journal_of(killed)


@pytest.fixture
def shared_out(tmp_path, tiny_weights):
    """Run eight pairs on some devices, a process for each; return the output."""
    write_frames(tmp_path, 4)
    pairs = [("f0.png", "f1.png"), ("f2.png", "f3.png")] * 4
    manifest = write_pairs(tmp_path / "manifest.csv", pairs)

    def run(name, devices, watch=lambda flows: None):
        job, plan = make_job(manifest, tmp_path / name, sha256_of(tiny_weights), segment=1)
        job = replace(job, weights=str(tiny_weights))

        def engine(job, plan, numbers, _):
            return run_local(job, plan, numbers, devices, watch)

        run_bulk(job, plan, engine)
        return contents(tmp_path / name)

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_two_processes_write_what_one_writes(shared_out):
    alone = shared_out("one", ["cpu"])
    assert shared_out("two", ["cpu", "cpu"]) == alone

    def kill_one(flows):
        active_children()[0].kill()

    with pytest.raises(ChildProcessError, match="the process on cpu has died"):
        shared_out("killed", ["cpu", "cpu"], kill_one)
    assert shared_out("killed", ["cpu"]) == alone


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_three_kills_change_nothing(tmp_path, run, tiny_weights):
    survive(tmp_path, run, tiny_weights, kills=3, flows=20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
def test_fifty_kills_change_nothing(tmp_path, run, tiny_weights):
    entries = survive(tmp_path, run, tiny_weights, kills=50, flows=400)
    done = [entry["segment"] for entry in entries if entry["event"] == "segment"]
    assert len(done) == len(set(done))  # nothing is computed twice
    assert len({entry["run"] for entry in entries}) > 25  # the work was spread over many runs
