"""What is missing is said at once: torch, which takes seconds to import, is not imported for it."""

import json
import sys

import pytest
from children import run_child

CHILD = """
import json, sys
from dicl_flow.cli import main

for command in json.loads(sys.argv[1]):
    try:
        main(command.split())
    except SystemExit as end:
        print(json.dumps([command, end.code, "torch" in sys.modules]))
"""

MISSING = {
    "flow no.png b.png -o x.flo": "no such file: no.png",
    "flow a.png no.png -o x.flo": "no such file: no.png",
    "flow a.png a.png -o x.flo -w no.safetensors": "no weights file at no.safetensors",
    "flow text.png a.png -o x.flo": "text.png is not an image",
    "flow a.png a.png -o text.png/x.flo": "text.png is not a folder",
    "show no.flo": "no such file: no.flo",
    "warp no.png x.flo -o x.png": "no such file: no.png",
    "warp a.png no.flo -o x.png": "no such file: no.flo",
    "interpolate a.png no.png -o x.png": "no such file: no.png",
    "video no.mp4 -o x.npy": "no video, folder or camera no.mp4",
    "video . -o x.npy -w no.safetensors": "no weights file",
    "stabilize no.mp4 -o x.mp4": "no video, folder or camera no.mp4",
    "stabilize . -o x.mp4 -w no.safetensors": "no weights file",
    "adapt no.mp4 -o x.safetensors": "no video, folder or camera no.mp4",
    "adapt . -o x.safetensors -w no.safetensors": "no weights file",
    "adapt . -o x.safetensors --photos no": "no folder of photographs no",
    "bulk no.csv -o out": "no manifest, folder or video no.csv",
    "bulk no.csv -o out -w no.safetensors": "no weights file",
    "bulk list no -o x.csv": "no manifest, folder or video no",
    "bulk verify no": "no bulk output at no",
    "eval --data kitti15=no": "no folder no",
    "eval --data pairs=. -w no.safetensors": "no weights file",
    "eval --data kitti16=no": "unknown data set",
    "submit kitti15 no -o x.zip": "no folder no",
    "data check chairs no": "no folder no",
    "data bench chairs no": "no folder no",
    "train chairs-0 --data chairs=no": "no folder no",
    "reproduce chairs --data chairs=no": "no folder no",
    "reproduce all": "sintel-final: the recipe needs",
    "table2 no --data kitti15=no": "no folder no",
    "train chairs-0": "give its folder with --data chairs=PATH",
    "train finetune --data pairs=. --init no.safetensors": "no weights file",
    "train no.toml": "no recipe at no.toml",
    "train rendered-0 --data rendered=no": "no folder no",
    "train chairs-0 --data chairs=. --resume -o no": "no run to resume",
    "ablate metrics --data rendered=no -o out": "no folder no",
    "ablate metrics --data rendered=. --data kitti15=no -o out": "no folder no",
    "render no -o out": "no folder of photographs no",
    "calibrate -d rendered=no -o x.safetensors": "no folder of photographs no",
    "calibrate -d rendered=procedural -w no.safetensors -o x.safetensors": "no weights file",
    "analyze peaks --pair no.png a.png -o out": "no such file: no.png",
    "analyze kernels -w no.safetensors -o out": "no weights file",
    "analyze pixel 1 1 -w no.safetensors -o out": "no weights file",
    "analyze pixel 1 999 --pair a.png a.png -o out": "the pixel 1 999 is outside",
    "analyze compare no.safetensors -o out": "no weights file",
    "bench -w no.safetensors": "no weights file",
    "serve -w no.safetensors": "no weights file",
    "explore no.png a.png": "no such file: no.png",
    "explore text.png a.png": "text.png is not an image",
    "explore a.png a.png --truth no.flo": "no such file: no.flo",
    "explore no.mp4": "no video, folder or camera no.mp4",
    "explore -w no.safetensors": "no weights file",
    "convert no.pth -o x.safetensors": "no such file: no.pth",
    "export --dynamic -w no.safetensors -o x.onnx": "no weights file",
    "info no.safetensors": "no weights file",
    "demo -w no.safetensors": "no weights file",
    "flow a.png a.png -o x.flo --quality bst": "unknown quality 'bst'; did you mean 'best'",
    "flow a.png a.png -o x.flo --backend fsat": "unknown backend 'fsat'; did you mean 'fast'",
    "flow a.png a.png -o x.flo --precision fp8": "unknown precision 'fp8'; known: auto",
    "flow a.png a.png -o x.flo --device gpu": "unknown device 'gpu'; did you mean 'cuda'",
    "flow a.png a.png -o x.flo --device cuda:one": "unknown device 'cuda:one'",
    "flow a.png a.png -o x.flo --device auto:": "unknown device 'auto:'",
    "video . -o x.npy --precision fp8": "unknown precision 'fp8'",
    "train chairs-0 --data chairs=. --device gpu": "unknown device 'gpu'",
    "calibrate -d rendered=procedural -o x.safetensors --quality bst": "unknown quality 'bst'",
    "serve --quality bst": "unknown quality 'bst'",
}


@pytest.mark.heavy
def test_what_is_missing_is_said_before_torch_is_imported(tmp_path, frames, monkeypatch):
    frames[0].rename(tmp_path / "a.png")
    (tmp_path / "text.png").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    child = run_child("-c", CHILD, json.dumps(list(MISSING)))
    ends = [json.loads(line) for line in child.stdout.splitlines()]
    errors = child.stderr.splitlines()
    assert len(ends) == len(errors) == len(MISSING), child.stderr
    for (command, code, torch_imported), error in zip(ends, errors, strict=True):
        assert error.startswith("error: "), command
        assert MISSING[command] in error, command
        assert (code, torch_imported) == (2, False), command
    assert "torch" in sys.modules  # the word that is looked for
