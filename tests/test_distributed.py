"""Two processes on the CPU (gloo) are one process with the double batch."""

import socket

import pytest
import torch
from children import TESTS, run_child, run_forked_child
from conftest import SMALL_LEVELS
from fake_trees import make_chairs

from dicl_flow.config import HOSTS
from dicl_flow.errors import InputError
from dicl_flow.training import Processes
from dicl_flow.weights import read_weights

pytestmark = pytest.mark.heavy


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(
    scope="module", params=["dicl", *(pytest.param(h, marks=pytest.mark.slow) for h in HOSTS[1:])]
)
def outcomes(request, tmp_path_factory):
    """What one process and two processes found, for a host."""
    folder = tmp_path_factory.mktemp("distributed")
    worker = TESTS / "distributed_worker.py"
    child = run_forked_child(worker, request.param, folder, free_port())
    assert child.returncode == 0, child.stderr
    return [torch.load(folder / f"{n}.pt", weights_only=True) for n in (1, 2)]


@pytest.mark.xdist_group("outcomes")
def test_loss_and_error_are_those_of_one_process(outcomes):
    alone, together = (outcome["values"] for outcome in outcomes)
    for key in ("loss", "epe", "gradient_norm"):
        assert together[key] == pytest.approx(alone[key], rel=1e-9)


@pytest.mark.xdist_group("outcomes")
@pytest.mark.parametrize("kind", ["gradients", "buffers"])
def test_gradients_and_statistics_are_those_of_one_process(outcomes, kind):
    alone, together = (outcome[kind] for outcome in outcomes)
    assert alone.keys() == together.keys()
    for key in alone:
        scale = alone[key].abs().max().clamp(min=1e-6)
        assert ((alone[key] - together[key]).abs().max() / scale) < 1e-7, key


@pytest.mark.slow  # two processes are tried above
def test_torchrun_as_a_user_types_it(tmp_path):
    make_chairs(tmp_path / "chairs", size=(60, 70))
    changes = ["steps=1", "batch=4", "workers=0", "augment.crop=[32,48]"]
    changes += [SMALL_LEVELS, "loss.matched=[0.4,0.8]"]
    process = run_child(
        *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--standalone", "-m", "dicl_flow", "train", "chairs-0"),
        *("--data", f"chairs={tmp_path / 'chairs'}", "-o", str(tmp_path / "run")),
        *("--device", "cpu", *(word for change in changes for word in ("--set", change))),
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("finished: step 1") == 1
    assert read_weights(tmp_path / "run" / "weights.safetensors").about["pairs"] == "4"


def test_a_batch_that_cannot_be_shared_is_refused():
    processes = Processes(torch.device("cpu"), 0, 3)
    with pytest.raises(InputError, match="a batch of 64 cannot be divided among 3 processes"):
        processes.share(64, 1)
    assert processes.share(12, 2) == 2
