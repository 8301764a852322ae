"""Two processes on the CPU (gloo) equal one process with twice the batch."""

import json
import socket

import pytest
import torch
from children import SUPPORT, run_child, run_forked_child
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
    worker = SUPPORT / "distributed_worker.py"
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


@pytest.mark.slow
def test_an_ablation_in_the_paper_s_stages_with_torchrun(tmp_path):
    """Two processes: each stage follows the one before; the first alone writes and prints."""
    make_chairs(tmp_path / "chairs", size=(60, 70))
    changes = ["steps=2", "batch=4", "workers=0", "augment.crop=[64,64]", "validate_every=1"]
    changes += ["model.levels=[{ stride = 4, radius = 1, context = [[8, 1]] }]"]
    changes += ["loss.refined=[1.0]", "picture_every=0"]
    process = run_child(
        *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--standalone", "-m", "dicl_flow", "ablate", "hosts", "--protocol", "paper"),
        *("--variant", "PWC-Net", "--variant", "PWC-Net + DICL", "--json"),
        *("--data", f"chairs={tmp_path / 'chairs'}", "-o", str(tmp_path / "out")),
        *("--device", "cpu", *(word for change in changes for word in ("--set", change))),
    )
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)  # once
    assert list(document["variants"]) == ["PWC-Net", "PWC-Net + DICL"]
    for runs in document["variants"].values():
        assert runs[0]["scores"]["chairs:val"]["num_pairs"] == 1
    for weights in (tmp_path / "out").glob("*/weights.safetensors"):
        about = read_weights(weights).about
        assert about["pairs"] in ("4", "8")  # the best of two steps of 4
        assert about["started_from"].startswith("chairs-1/best.safetensors")


def test_a_batch_that_cannot_be_shared_is_refused():
    processes = Processes(torch.device("cpu"), 0, 3)
    with pytest.raises(InputError, match="a batch of 64 cannot be divided among 3 processes"):
        processes.share(64, 1)
    assert processes.share(12, 2) == 2
