"""A million pairs are planned, and found finished, in a minute and with little memory."""

import json
from itertools import pairwise

import pytest
from bulk_runs import write_pairs
from children import SUPPORT, run_child

ROWS = 1_000_000


def run(task, manifest, out):
    child = run_child(SUPPORT / "bulk_scale_child.py", task, manifest, out)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr("children.DEADLINE", 1200)
    names = [f"camera_{n % 97}/day_{n // 10_000:04d}/frame_{n:08d}.png" for n in range(ROWS + 1)]
    manifest = write_pairs(tmp_path / "manifest.csv", pairwise(names))
    plan = run("plan", manifest, tmp_path / "out")
    assert plan["seconds"] < 60
    assert plan["peak"] < 1024
    computed = run("compute", manifest, tmp_path / "out")
    assert computed["left"] == computed["segments"] == 3907
    resumed = run("resume", manifest, tmp_path / "out")
    assert resumed["left"] == 0
    assert resumed["seconds"] < 60
    print(plan, computed, resumed)
