"""Small bulk runs: manifests of frames that move, and a stand-in for the network."""

import json

import fake_trees
from clips import KnownMotion
from conftest import SMALL

from dicl_flow.bulk.engines import run_local
from dicl_flow.bulk.job import Job, Plan, Settings
from dicl_flow.bulk.manifest import read_manifest
from dicl_flow.bulk.run import BulkRun
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build

RUN_DEPENDENT = ("journal.jsonl", "summary.json", "summary.png")


class Silent:
    """Watches a run without a word; remembers what was left to do."""

    def begin(self, plan, done, left):
        self.left = list(left)

    def flows(self, number):
        pass

    def segment(self, segment, marker):
        pass


def write_frames(folder, number=4, size=(24, 32)):
    """f0.png, f1.png and so on."""
    for place, frame in enumerate(fake_trees.moving_frames(number, size)[0]):
        fake_trees.write_image(folder / f"f{place}.png", frame)
    return folder


def write_pairs(path, pairs):
    rows = "".join(f"{first},{second}\n" for first, second in pairs)
    path.write_text(f"image1,image2\n{rows}")
    return path


def make_job(manifest, out, weights="stand-in", **settings):
    """A job and its plan; tables are CSV, so that pyarrow is not needed."""
    listed = read_manifest(str(manifest))
    settings = Settings(weights, **{"table": "csv", **settings})
    job = Job(settings, str(out), listed.root)
    return job, Plan(listed, settings)


def run_bulk(job, plan, engine=None, watcher=None, **options):
    """Run a job on the CPU; return the run."""

    def local(job, plan, numbers, watch):
        return run_local(job, plan, numbers, ["cpu"], watch)

    run = BulkRun(job, plan, **options)
    run.run(engine or local, "cpu", watcher or Silent())
    return run


def know_motion(monkeypatch):
    """Let workers estimate with the stand-in; the network, a small one, is not used."""
    estimator = FlowEstimator(build(SMALL), "cpu", "fp32", "plain")
    monkeypatch.setattr(Job, "load", lambda job, device: estimator)
    monkeypatch.setattr("dicl_flow.bulk.worker.FlowSequence", KnownMotion)


def contents(out):
    """All files of an output that must not depend on the run, by name."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name not in RUN_DEPENDENT]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def journal_of(out):
    return [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
