"""`dicl-flow table2`: a chain folder becomes the paper's table 2 with our rows."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import TINY
from fake_trees import make_kitti15, make_sintel

import dicl_flow
from dicl_flow.models import build
from dicl_flow.training import RunFolder, read_recipe
from dicl_flow.weights import Weights, encode_weights

DOT = replace(TINY, matcher="dot")
WITHOUT = replace(DOT, projection=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tiny trees of the three columns."""
    root = tmp_path_factory.mktemp("data")
    sintel = make_sintel(root / "sintel", size=(20, 40))
    kitti = make_kitti15(root / "kitti", size=(20, 40))
    return {"kitti15": kitti, "sintel-clean": sintel, "sintel-final": sintel}


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """Two chain folders, in which no two stages have the same weights."""
    root = tmp_path_factory.mktemp("chains")
    for seed, stage in enumerate(("things", "kitti", "sintel")):
        write_stage(root / "with" / stage, DOT, seed)
        write_stage(root / "without" / stage, WITHOUT, seed + 10)
    return root


def write_stage(folder, config, seed, name="best", steps=7):
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    state = build(config).state_dict()
    weights = Weights(config, state, {"recipe": folder.name, "steps": str(steps)})
    (folder / f"{name}.safetensors").write_bytes(encode_weights(weights))


def words(data, *names):
    return [word for name in names or data for word in ("--data", f"{name}={data[name]}")]


@pytest.mark.heavy
def test_both_chains_below_the_published_rows(data, chains, run, tmp_path):
    written = tmp_path / "table2.json", tmp_path / "table2.md"
    folders = (chains / "with", "--without-projection", chains / "without")
    code, printed, err = run(
        "table2", *folders, *words(data), "-o", written[0], "--markdown", written[1]
    )
    assert (code, err) == (0, "")
    document = json.loads(written[0].read_text())
    assert document["missing"] == []
    rows = [row for row in document["rows"] if row["by"] == "ours"]
    ours = {(row["method"], row["training"]): row["metrics"] for row in rows}
    assert len(ours) == 4
    sintel = ("sintel-clean", "sintel-final")
    compare(ours["DICL", "C+T"], chains / "with/things", data, tuple(data))
    compare(ours["DICL", "+K/S"], chains / "with/kitti", data, ("kitti15",))
    compare(ours["DICL", "+K/S"], chains / "with/sintel", data, sintel)
    compare(ours["DICL without DAP", "C+T"], chains / "without/things", data, ("kitti15",))
    compare(ours["DICL without DAP", "+K/S"], chains / "without/kitti", data, ("kitti15",))

    text = written[1].read_text()
    for line in (
        "| DICL without DAP | C+T | 8.78 | 23.8 | 2.11 | 3.85 |",
        "| DICL | +K/S | (1.02) | (3.6) | (1.11) | (1.60) |",
        "KITTI-15 (occ) here has 2 of the 200 pairs: not comparable.",
    ):
        assert line in text
    kitti, clean, _ = ours["DICL", "+K/S"].values()
    cells = f"({kitti['epe_images']:.2f}) | ({kitti['fl_all']:.1f}) | ({clean['epe']:.2f})"
    assert f"| DICL, ours | +K/S | {cells}" in text
    assert "Table 2 of the paper" in printed
    assert "Over pixels and over images" in printed


def compare(row, folder, data, names):
    """Our cells of a row are what `evaluate` finds for these weights."""
    roots = {name: data[name] for name in names}
    weights = folder / "best.safetensors"
    found = dicl_flow.evaluate(roots, [weights], device="cpu", precision="fp32")
    for result in found.results:
        for metric, value in row[result.data].items():
            assert value == pytest.approx(result.total.values[metric], rel=1e-6)


def test_what_is_missing_stays_empty_and_is_named(data, chains, run, tmp_path):
    write_stage(tmp_path / "chain/things", DOT, 0)
    arguments = ("table2", tmp_path / "chain", *words(data, "sintel-clean"), "--json", "--quiet")
    code, printed, _ = run(*arguments)
    assert code == 0
    document = json.loads(printed)
    assert document["missing"] == [
        "DICL, +K/S, KITTI-15 (occ): no weights of the stage kitti",
        "DICL, +K/S, Sintel clean, Sintel final: no weights of the stage sintel",
        "DICL without DAP: no chain folder",
        "KITTI-15 (occ): no data set kitti15",
        "Sintel final: no data set sintel-final",
    ]
    rows = [row for row in document["rows"] if row["by"] == "ours"]
    filled = [
        (row["method"], row["training"], name)
        for row in rows
        for name, metrics in row["metrics"].items()
        if any(value is not None for value in metrics.values())
    ]
    assert filled == [("DICL", "C+T", "sintel-clean")]
    (measured,) = document["measured"]
    assert measured["weights"] == str(tmp_path / "chain/things/best.safetensors")


def test_the_best_weights_count_and_an_unfinished_stage_is_named(data, run, tmp_path):
    config = read_recipe("kitti", ["steps=9"])
    folder = RunFolder(tmp_path / "kitti")
    folder.prepare(config, resume=False)
    write_stage(folder.path, DOT, 0, "weights", steps=8)
    arguments = ("table2", tmp_path, *words(data, "kitti15"), "--json", "--quiet")
    last = json.loads(run(*arguments)[1])
    assert last["measured"][0]["weights"] == str(folder.weights)
    assert f"{folder.weights}: not finished, step 8 of 9." in last["notes"]
    write_stage(folder.path, DOT, 1, "best", steps=5)
    write_stage(folder.path, DOT, 0, "weights", steps=9)
    best = json.loads(run(*arguments)[1])
    assert best["measured"][0]["weights"] == str(folder.best)
    assert best["measured"][0]["unfinished"] is None
    assert best["measured"][0]["metrics"] != last["measured"][0]["metrics"]


def test_both_ways_of_averaging(data, chains, run):
    """The pairs of KITTI have different numbers of valid pixels."""
    arguments = ("table2", chains / "with", *words(data, "kitti15"), "--json", "--quiet")
    metrics = json.loads(run(*arguments)[1])["measured"][0]["metrics"]
    estimator = dicl_flow.load(chains / "with/things/best.safetensors", "cpu", "fp32")
    found = dicl_flow.evaluate({"kitti15": data["kitti15"]}, {"mine": estimator}).results[0]
    pairs = [score.values for score in found.scores.values()]
    assert metrics["epe_images"] == pytest.approx(sum(pair["epe"] for pair in pairs) / 2)
    assert metrics["fl_images"] == pytest.approx(sum(pair["fl_all"] for pair in pairs) / 2)
    assert metrics["epe"] != pytest.approx(metrics["epe_images"], rel=1e-9)


def test_what_cannot_be_a_table_is_refused_in_one_sentence(data, chains, run, tmp_path):
    kitti = words(data, "kitti15")
    (tmp_path / "empty/things").mkdir(parents=True)
    refused = {
        (tmp_path / "empty", *kitti): "holds no weights of things, kitti, sintel",
        (chains / "with", "--without-projection", tmp_path / "empty", *kitti): "holds no weights",
        (tmp_path / "no", *kitti): "no folder",
        tuple(kitti): "name the folder of a chain",
        (chains / "with",): "--data names no data set",
        (chains / "with", "--data", "chairs=."): "unknown column of table 2 'chairs'",
        (chains / "without", *kitti): "was trained without DAP",
        (chains / "with", *kitti, "-o", "/dev/null/x.json"): "is not a folder",
    }
    for arguments, message in refused.items():
        code, printed, err = run("table2", *arguments)
        assert (code, printed) == (2, ""), arguments
        assert message in err
        assert err.count("\n") == 1
