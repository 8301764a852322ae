"""A bulk run that is killed at any moment is resumed by the same command, bit for bit."""

import random
import signal

import pytest
from bulk_runs import contents, journal_of, write_frames, write_pairs
from children import TESTS, run_child

CHILD = TESTS / "signal_child.py"
PLACES = (
    "dicl_flow.bulk.products:_File.write",
    "dicl_flow.bulk.worker:_Writer.write",
    "dicl_flow.bulk.products:Products.finish",
    "dicl_flow.bulk.storage:LocalFolder.remove",
    "dicl_flow.bulk.storage:LocalFolder.publish",
    "dicl_flow.bulk.storage:LocalFolder.write",
    "dicl_flow.bulk.claims:Claim.publish",
    "dicl_flow.bulk.records:Journal.note",
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
    for number in range(kills):
        place, call = PLACES[(number * 3 + kills) % len(PLACES)], dice.randint(1, 4)
        child = run_child(CHILD, "SIGKILL", call, place, "bulk", manifest, "-o", killed, *how)
        assert child.returncode == -signal.SIGKILL, (place, call, child.stderr)
    assert run("bulk", manifest, "-o", killed, *how)[0] == 0
    assert run("bulk", manifest, "-o", out, *how)[0] == 0
    assert contents(killed) == contents(out)
    assert not any((killed / ".parts").iterdir())
    return journal_of(killed)


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_three_kills_change_nothing(tmp_path, run, small_weights):
    survive(tmp_path, run, small_weights, kills=3, flows=14)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
def test_fifty_kills_change_nothing(tmp_path, run, small_weights):
    entries = survive(tmp_path, run, small_weights, kills=50, flows=400)
    done = [entry["segment"] for entry in entries if entry["event"] == "segment"]
    assert len(done) == len(set(done))  # nothing is computed twice
    assert len({entry["run"] for entry in entries}) > 25  # the work was spread over many runs
