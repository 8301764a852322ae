"""A process starts as many threads as it has cores."""

import os

import pytest
import torch

from dicl_flow.accelerated import settings as cores
from dicl_flow.accelerated.settings import limit_threads, usable_cores

V2 = {"proc/self/cgroup": "0::/jobs/one\n"}
V1 = {"proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"}
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 64),
        ({**V2, "sys/fs/cgroup/jobs/one/cpu.max": "200000 100000\n"}, 2),
        ({**V2, "sys/fs/cgroup/jobs/one/cpu.max": "max 100000\n"}, 64),
        ({**V2, "sys/fs/cgroup/jobs/cpu.max": "150000 100000\n"}, 2),  # of the group above
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({**V2, "sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 64),  # more than there are
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            64,
        ),
        ({SIBLINGS.format(cpu): f"{cpu % 32},{cpu % 32 + 32}\n" for cpu in range(64)}, 32),
    ],
)
def test_cores_of_a_machine_with_64_processors(monkeypatch, tmp_path, files, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == count


def test_affinity_limits_the_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 7}, raising=False)
    assert usable_cores(tmp_path) == 2


@pytest.mark.parametrize(
    ("usable", "asked", "expected"), [(2, None, [2]), (64, None, []), (2, "16", [])]
)
def test_threads_are_only_ever_fewer(monkeypatch, usable, asked, expected):
    """Not more than torch would take; what was asked for stays."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    chosen = []
    monkeypatch.setattr(cores, "usable_cores", lambda: usable)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    limit_threads()
    assert chosen == expected
