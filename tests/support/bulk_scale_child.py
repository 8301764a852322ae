"""Plans, computes or resumes a bulk run of many pairs, with a stand-in for the network.

python bulk_scale_child.py plan|compute|resume MANIFEST OUT

Prints seconds of processor time, the peak of its memory in MiB, and the segments left to do.
"""

import json
import resource
import sys
from time import process_time

from dicl_flow.bulk.job import Job, Plan, Settings
from dicl_flow.bulk.manifest import read_manifest


class Watcher:
    """Remembers what was left to do."""

    left = None

    def begin(self, plan, done, left):
        self.left = len(left)

    def flows(self, number):
        pass

    def segment(self, segment, marker):
        pass


def stand_in(job, plan, numbers, watch):
    """An engine that reads no frames and gives every flow the same scores."""
    from dicl_flow.bulk.writing import Outcome, Pair, PartsFolder, SegmentFiles

    scores = {"width": 64, "height": 48, "mean_length": 2.0, "max_length": 3.0, "scene_cut": False}
    for number in numbers:
        segment = plan[number]
        folder = PartsFolder(job.storage(), segment.name)
        written = SegmentFiles(folder, job.settings)
        for place, row in enumerate(segment.rows, start=segment.first):
            written.add(Pair(place, 0, row.name, row.image1, row.image2), scores, None, None)
            written.end_clip(place, row)
        files, marker = written.finish()
        folder.publish(files, marker)
        yield Outcome(segment.name, marker, 1.0)


def main(task, manifest, out):
    watcher = Watcher()
    listed = read_manifest(manifest)
    job = Job(Settings("stand-in", table="csv"), out, listed.root)
    plan = Plan(listed, job.settings)
    if task != "plan":
        from dicl_flow.bulk.run import BulkRun

        BulkRun(job, plan).run(stand_in, "cpu", watcher)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    found = {"seconds": process_time(), "peak": peak, "left": watcher.left}
    print(json.dumps({**found, "segments": len(plan)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
