"""Bulk runs on Ray write the same segments as local ones."""

import csv
import json
import os
import pickle
import secrets
import socket
import sys
from types import SimpleNamespace

import pytest
from bulk_runs import (
    contents,
    journal_of,
    know_motion,
    make_job,
    run_bulk,
    write_frames,
    write_pairs,
)
from children import SUPPORT, started

from dicl_flow.bulk import engines
from dicl_flow.bulk.engines import Actor, Cluster, run_ray
from dicl_flow.bulk.job import finished
from dicl_flow.bulk.writing import Outcome
from dicl_flow.errors import InputError


class FakeRay:
    """What the engine uses of Ray, in this process; remembers how it was called."""

    def __init__(self):
        self.calls = []
        context = SimpleNamespace(enable_progress_bars=True)
        self.data = SimpleNamespace(
            DataContext=SimpleNamespace(get_current=lambda: context),
            ActorPoolStrategy=dict,
            from_items=lambda rows, **options: FakeData(self, rows, options),
        )

    def init(self, address, **options):
        self.calls.append(("init", address, options))

    def shutdown(self):
        self.calls.append(("shutdown",))


class FakeData:
    def __init__(self, ray, rows, options):
        self.ray, self.rows = ray, rows
        ray.calls.append(("from_items", len(rows), options["override_num_blocks"]))

    def map(self, actor, fn_constructor_args, **options):
        self.ray.calls.append(("map", options))
        self.actor = actor(*pickle.loads(pickle.dumps(fn_constructor_args)))
        return self

    def iter_rows(self):
        yield from (self.actor(row) for row in reversed(self.rows))  # in any order


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(engines, "ray_library", lambda: fake)
    know_motion(monkeypatch)
    return fake


@pytest.fixture
def manifest(tmp_path):
    write_frames(tmp_path, 4, (16, 24))
    pairs = [
        ("f0.png", "f1.png"),
        ("f1.png", "f2.png"),
        ("none.png", "f1.png"),
        ("f2.png", "f3.png"),
    ]
    return write_pairs(tmp_path / "manifest.csv", pairs)


def on(cluster):
    return lambda job, plan, numbers, watch: run_ray(job, plan, numbers, cluster, watch)


def test_actors_write_what_the_local_engine_writes(ray, manifest, tmp_path, monkeypatch):
    monkeypatch.setenv("DICL_FLOW_MAX_SIZE", "7")
    run_bulk(*make_job(manifest, tmp_path / "here", segment=1))
    pool = Cluster("auto", (2, 8), cpus=3, gpus=0.5)
    monkeypatch.chdir(tmp_path)
    run = run_bulk(*make_job(manifest, "there", segment=1), engine=on(pool))
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert run.failed == 1
    (init, items, (_, options), end) = ray.calls
    assert init[:2] == ("init", "auto")
    assert init[2]["runtime_env"]["env_vars"]["DICL_FLOW_MAX_SIZE"] == "7"
    assert all(name.startswith("DICL_FLOW_") for name in init[2]["runtime_env"]["env_vars"])
    assert items == ("from_items", 4, 4)  # a block for each segment
    assert options["compute"] == {"min_size": 2, "max_size": 8, "max_tasks_in_flight_per_actor": 2}
    assert (options["num_cpus"], options["num_gpus"]) == (3, 0)  # no GPU for the CPU
    assert end == ("shutdown",)


def test_a_gpu_is_asked_for_where_it_is_used(ray, manifest, tmp_path):
    job, plan = make_job(manifest, tmp_path / "out", device="cuda")
    next(run_ray(job, plan, range(len(plan)), Cluster(gpus=0.5), lambda flows: None))
    assert ray.calls[2][1]["num_gpus"] == 0.5


def test_progress_counts_flows_also_failed_ones(ray, manifest, tmp_path):
    job, plan = make_job(manifest, tmp_path / "out", segment=2)
    seen = []
    assert len([*run_ray(job, plan, range(2), Cluster(), seen.append)]) == 2
    assert sorted(seen) == [2, 2]


def test_a_segment_in_the_hands_of_a_lost_process_is_computed_later(
    ray, manifest, tmp_path, monkeypatch
):
    monkeypatch.setattr("dicl_flow.bulk.engines._PATIENCE", 0)
    job, plan = make_job(manifest, tmp_path / "out", segment=1)
    held = [plan.names[2]]
    compute = Actor.__call__

    def call(actor, row):
        name = pickle.loads(row["segment"]).name
        return (
            {"answer": pickle.dumps(Outcome(held.pop(), None))}
            if name in held
            else compute(actor, row)
        )

    monkeypatch.setattr(Actor, "__call__", call)
    outcomes = [*run_ray(job, plan, range(4), Cluster(), lambda flows: None)]
    assert [outcome.segment for outcome in outcomes] == [plan.names[n] for n in (3, 1, 0, 2)]
    assert sorted(finished(job.storage())) == plan.names


def test_what_a_user_can_fix_comes_back_as_it_is(ray, manifest, tmp_path, monkeypatch):
    def load(job, device):
        raise InputError("no such weights on this machine")

    monkeypatch.setattr("dicl_flow.bulk.job.Job.load", load)
    with pytest.raises(InputError, match="no such weights on this machine"):
        run_bulk(*make_job(manifest, tmp_path / "out"), engine=on(Cluster()))
    assert ray.calls[-1] == ("shutdown",)


def test_many_segments_share_blocks(ray, manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "_BLOCKS", 2)
    run_bulk(*make_job(manifest, tmp_path / "out", segment=1), engine=on(Cluster()))
    assert ray.calls[1] == ("from_items", 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actors": (0, 1)}, "`actors` must be fewest and most processes, got 0:1"),
        ({"actors": (3, 2)}, "got 3:2"),
        ({"cpus": 0}, "`cpus_per_actor` and `gpus_per_actor` must be positive"),
        ({"address": "ray://head:10001"}, "run the command on a machine of the cluster"),
    ],
)
def test_impossible_clusters(options, message):
    with pytest.raises(InputError, match=message):
        Cluster(**options)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ray", "auto"], "auto"),
        (["--ray", "10.0.0.1:6379"], "10.0.0.1:6379"),
        (["--ray"], "local"),
        (["--ray", "--quiet"], "local"),
    ],
)
def test_ray_alone_is_a_cluster_on_this_machine(
    run, manifest, tmp_path, monkeypatch, words, expected
):
    found = []

    def parse(*given):
        found.append(given)
        raise InputError("enough")

    monkeypatch.setattr("dicl_flow.cli.bulk.parse_cluster", parse)
    assert run("bulk", manifest, "-o", tmp_path / "out", *words)[0] == 2
    assert run("bulk", *words[:1], manifest, "-o", tmp_path / "out")[0] == 2
    assert [given[0] for given in found] == [expected, "local"]


def test_options_of_a_cluster_are_checked_first(run, manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "ray_library", FakeRay)
    bulk = ("bulk", manifest, "-o", tmp_path / "out")
    for words, message in (
        (["--actors", "2"], "--actors is for --ray, which is not given"),
        (["--ray", "--actors", "many"], "--actors must be a number, or MIN:MAX, got 'many'"),
        (
            ["--ray", "--actors", "4:2"],
            "--actors must be fewest and most processes, got 4:2",
        ),
        (
            ["--ray", "--device", "cuda:1"],
            "--device must be cpu or cuda, got 'cuda:1'",
        ),
        (["--ray", "--gpus-per-actor", "0"], "--gpus-per-actor must be positive"),
    ):
        code, _, error = run(*bulk, *words)
        assert (code, message in error) == (2, True), error
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(run, manifest, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, error = run("bulk", manifest, "-o", tmp_path / "out", "--ray", "auto")
    assert (code, error) == (2, "error: --ray needs Ray: pip install 'dicl-flow[bulk]'\n")
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_cluster_that_does_not_answer_is_given_up(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "ray_library", FakeRay)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address}"):
            run_bulk(*make_job(manifest, tmp_path / "out"), engine=on(Cluster(address)))


PRIVATE = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_worker_niceness": "0",  # default: 15
}
"""Of a cluster that nobody else uses, whose processes do not give way to others."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("one_thread")
def test_a_node_that_is_killed_changes_nothing(tmp_path, run, tiny_weights):
    pytest.importorskip("ray", reason="Ray is not installed")
    frames = [f"f{number}.png" for number in range(8)]
    write_frames(tmp_path, len(frames), (16, 24))
    pairs = [(frames[n % 8], frames[n // 8 % 8]) for n in range(199)]
    manifest = write_pairs(tmp_path / "manifest.csv", [*pairs, ("none.png", "f0.png")])
    how = ["--table", "csv", "--fields", "npy", "--segment", 1, "-w", tiny_weights]
    how += ["--device", "cpu", "--precision", "fp32", "--quiet"]
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert run("bulk", manifest, "-o", alone, *how)[0] == 3  # the last pair lacks a frame
    arguments = (SUPPORT / "ray_child.py", 60, killed, "bulk", manifest, "-o", killed, *how)
    with started(*arguments, **PRIVATE) as child:
        out, error = child.communicate(timeout=1000)
    assert child.returncode == 3, error
    node = json.loads(out)
    assert 60 <= node["done"] < 150
    assert node["actors"] == 1  # it was computing
    assert contents(killed) == contents(alone)
    rows = [row for path in killed.glob("scores/*.csv") for row in csv.DictReader(path.open())]
    assert sorted(int(row["key"][:9]) for row in rows) == [*range(200)]  # none twice, none missing
    noted = [entry["segment"] for entry in journal_of(killed) if entry["event"] == "segment"]
    assert len(noted) == len(set(noted)) >= 190  # what the node had not told is not noted
