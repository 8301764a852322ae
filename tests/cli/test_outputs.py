"""No command writes over what it reads, and every output is looked at before the work."""

import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from dicl_flow.files import write_flow

LINKS = {
    "itself": lambda path, link: path,
    "symlink": lambda path, link: link.symlink_to(path),
    "hard link": lambda path, link: os.link(path, link),
}


@pytest.fixture
def files(tmp_path, frames, tiny_weights):
    """What commands read, by name, all in one folder."""
    names = {"a": frames[0], "b": frames[1], "flow": tmp_path / "flow.png"}
    write_flow(names["flow"], np.ones((37, 51, 2), np.float32))
    names["weights"] = tmp_path / "w.safetensors"
    shutil.copy(tiny_weights, names["weights"])
    names["photo"] = tmp_path / "photos" / "photo.png"
    names["photo"].parent.mkdir()
    cv2.imwrite(str(names["photo"]), np.zeros((9, 9, 3), np.uint8))
    names["folder"], names["photos"] = tmp_path, names["photo"].parent
    return names


@pytest.fixture
def no_work(monkeypatch):
    """Let nothing be estimated or rendered: it would take long and be thrown away."""

    def refuse(*arguments, **options):
        raise AssertionError("the outputs are looked at too late")

    for name in ("load", "FlowEstimator"):
        monkeypatch.setattr(f"dicl_flow.estimation.estimator.{name}", refuse)
    monkeypatch.setattr("dicl_flow.render.Renderer", refuse)
    monkeypatch.setattr("dicl_flow.weights.read_weights", refuse)


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(run, files, command, message):
    for name, path in files.items():
        command = command.replace("{" + name + "}", str(path))
    before = everything(files["folder"])
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert everything(files["folder"]) == before


OVER_INPUT = {
    "flow -o": ("b", "flow {a} {b} -o {output}"),
    "flow --image": ("a", "flow {a} {b} --image {output}"),
    "flow --backward": ("a", "flow {a} {b} -o {folder}/x.flo --backward {output}"),
    "flow --occlusion": ("b", "flow {a} {b} --occlusion {output}"),
    "warp -o": ("a", "warp {a} {flow} -o {output}"),
    "warp --mask": ("flow", "warp {a} {flow} -o {folder}/x.png --mask {output}"),
    "show": ("flow", "show {flow} -o {output}"),
    "interpolate": ("a", "interpolate {a} {b} -o {output}"),
    "convert": ("weights", "convert {weights} -o {output} --half"),
    "calibrate": ("weights", "calibrate -w {weights} -d rendered=procedural -o {output}"),
    "render --stats": ("photo", "render {photos} -o {folder}/out --stats {output}"),
}


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("case", OVER_INPUT)
def test_no_command_writes_over_its_input(run, files, case, link):
    name, command = OVER_INPUT[case]
    output = files["folder"] / f"link{files[name].suffix}"
    files["output"] = output if LINKS[link](files[name], output) is None else files[name]
    refused(run, files, command, f"{files['output']} is the input as well")


@pytest.mark.usefixtures("no_work")
def test_numbered_frames_are_no_input_either(run, files):
    shutil.copy(files["a"], files["folder"] / "slow_2.png")
    files["a"] = files["folder"] / "slow_2.png"
    refused(run, files, "interpolate {a} {b} -o {folder}/slow.png -n 3", "slow_2.png is the input")


@pytest.mark.usefixtures("no_work")
def test_a_folder_of_sheets_may_hold_a_frame_of_that_name(run, files):
    command = "analyze compare dis --pair {a} {b} -o {folder}"
    refused(run, files, command, f"{files['a']} is the input as well")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("command", ["peaks", "pixel 3 4"])
def test_analyses_do_not_write_over_their_frames(run, files, command, link):
    name = command.split()[0]
    output = files["folder"] / f"{name}.png"
    if LINKS[link](files["a"], output) is not None:
        files["a"] = files["a"].rename(output)
    words = f"analyze {command} --pair {{a}} {{b}} -o {{folder}}"
    refused(run, files, words, f"{output} is the input as well")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", ["peaks", "kernels", "pixel 3 4"])
def test_analyses_do_not_write_over_their_weights(run, files, command):
    """Weights end in .safetensors, but a link among the results may lead to them."""
    (files["folder"] / f"{command.split()[0]}.json").symlink_to(files["weights"])
    refused(run, files, f"analyze {command} -w {{weights}} -o {{folder}}", "is the input as well")


@pytest.mark.parametrize("command", ["peaks", "kernels", "pixel 3 4", "layers"])
def test_analyses_look_at_their_folder_before_they_work(run, files, command, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the folder is looked at too late")

    monkeypatch.setattr("dicl_flow.lab.volumes.open_networks", refuse)
    monkeypatch.setattr("dicl_flow.lab.layers.measure_layers", refuse)
    refused(run, files, f"analyze {command} -o {{flow}}", "is not a folder")


@pytest.mark.usefixtures("no_work")
def test_a_folder_of_photographs_is_not_rendered_into(run, files):
    refused(run, files, "render {photos} -o {photos}", "photos is the input as well")


@pytest.mark.usefixtures("no_work")
def test_a_sheet_of_a_data_set_does_not_replace_its_frames(run, files):
    for end, name in (("img1.png", "a"), ("img2.png", "b"), ("flow.png", "flow")):
        shutil.copy(files[name], files["photos"] / f"x_{end}")
    files["photo"].unlink()
    files["frame"] = files["photos"] / "x_img1.png"
    message = "x_img1.png is the input as well"
    refused(run, files, "data check pairs {photos} -o {frame}", message)
    refused(run, files, "eval -d pairs={photos} --sparsification {frame} -w {weights}", message)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("flow {a} {b} -o {folder}/x.flo --image {folder}/x.abc", "unknown image extension"),
        ("flow {a} {b} --image {folder}/x", "unknown image extension"),
        ("flow {a} {b} -o {folder}/x.jpeg", "flow files must end in .flo"),
        ("flow {a} {b} -o {a}/no/x.flo", "is not a folder"),
        ("flow {a} {b} -o {folder}/x.png --image {folder}/photos/../x.png", "the same name"),
        ("flow {a} {b} --image {folder}/one.png --arrows {folder}/two.png", "the same name"),
        ("interpolate {a} {b} -o {folder}/x.abc", "unknown image extension"),
        ("warp {a} {flow} -o {folder}/x.png --mask {folder}/x.png", "the same name"),
    ],
)
def test_outputs_are_looked_at_before_the_estimate(run, files, command, message):
    (files["folder"] / "one.png").write_bytes(b"one file of two names")
    os.link(files["folder"] / "one.png", files["folder"] / "two.png")
    refused(run, files, command, message)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("source", ["{folder}", "{folder}/frame*.png", "{links}"])
@pytest.mark.parametrize("output", ["{folder}", "{link}"])
def test_a_video_is_not_written_over_its_frames(run, files, source, output):
    """Neither through a link to their folder, nor where links to them lead."""
    files["links"], files["link"] = files["folder"] / "links", files["folder"] / "link"
    files["links"].mkdir()
    for name in ("a", "b"):
        (files["links"] / files[name].name).symlink_to(files[name])
    files["link"].symlink_to(files["folder"])
    refused(run, files, f"video {source} -o {output} --format png", "is the input as well")


def test_a_result_may_be_written_again(run, files):
    """What is no input is replaced, as ever."""
    for _ in range(2):
        assert run("show", files["flow"], "-o", files["folder"] / "picture.png", "-q")[0] == 0


CREATED = {
    "flow": "flow {a} {b} -w {weights} -o {new}/1/x.flo --image {new}/2/x.png",
    "show": "show {flow} -o {new}/x.png",
    "warp": "warp {a} {flow} -o {new}/1/x.png --mask {new}/2/x.png",
    "interpolate": "interpolate {a} {b} -w {weights} -o {new}/x.png",
    "slow motion": "interpolate {clip} -w {weights} -o {new}/slow.mp4 --factor 2",
    "stabilize": "stabilize {clip} -w {weights} -o {new}/1/x.mp4 --path {new}/2/x.csv",
    "video": "video {clip} -w {weights} -o {new}/1/x.npy -o {new}/2/flows --stats {new}/3/x.csv",
    "track": "track {clip} --grid 8 -w {weights} -o {new}/1/x.npz --video {new}/2/x.mp4",
    "convert": "convert {weights} -o {new}/w.safetensors --half",
    "bulk list": "bulk list {clip} -o {new}/list.csv",
    "data check": "data check pairs {clip} -o {new}/sheet.png",
    "eval": "eval -d pairs={clip} --baseline dis -o {new}/1/x.json --markdown {new}/2/x.md",
    "render": "render procedural -n 1 --size 64x64 -o {new}/scenes --stats {new}/motion/x.png",
}


@pytest.mark.parametrize("case", CREATED)
def test_missing_folders_are_created(run, files, case):
    files["clip"], files["new"] = files["folder"] / "clip", files["folder"] / "new"
    files["clip"].mkdir()
    for name in ("a", "b"):
        shutil.copy(files[name], files["clip"] / files[name].name)
    command = CREATED[case].format_map({name: str(path) for name, path in files.items()})
    code, out, err = run(*command.split(), "--json")
    assert code == 0, err
    assert all(Path(path).exists() for path in json.loads(out)["written"])
    outputs = [word for word in command.split() if word.startswith(str(files["new"]))]
    assert all(Path(path).exists() for path in outputs)
