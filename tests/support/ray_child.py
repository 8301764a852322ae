"""Child process: a bulk run on a Ray cluster of two nodes, one of which is killed on the way.

Arguments: the number of finished segments at which it is killed, the output, and the arguments of
`dicl-flow`, without `--ray`. What the killed node was doing is printed as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path
from threading import Event, Thread

from ray.cluster_utils import Cluster

from dicl_flow.cli import main

NODE = {"num_cpus": 1, "object_store_memory": 128 * 2**20}


def processes_of(node):
    """The processes of a node, with those that its raylet has started: (number, command)."""
    own = {entry.process.pid for entries in node.all_processes.values() for entry in entries}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (path / "status").read_text(), (path / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        parent = int(status.partition("PPid:")[2].split()[0])
        if parent in own or int(path.name) in own:
            yield int(path.name), command


def kill_on_the_way(node, markers, number, over):
    while not over.wait(0.05):
        done = len([*markers.glob("*.json")])
        if done >= number:
            found = dict(processes_of(node))
            for process in found:
                os.kill(process, signal.SIGKILL)
            actors = [command for command in found.values() if "Actor" in command]
            about = {"done": done, "killed": len(found), "actors": len(actors)}
            print(json.dumps(about), file=sys.__stdout__)  # sys.stdout is stderr during the run
            return


def run(number, out, *arguments):
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    node, over = cluster.add_node(**NODE), Event()
    watch = Thread(target=kill_on_the_way, args=(node, Path(out) / "segments", int(number), over))
    watch.start()
    try:
        main([*arguments, "--ray", cluster.address])
    finally:
        over.set()
        watch.join()
        cluster.shutdown()


if __name__ == "__main__":
    run(*sys.argv[1:])
