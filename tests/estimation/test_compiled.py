"""A compiled file gives a C++ program without Python the estimator's flow."""

import shutil
import subprocess
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from exports import SIZE, make_weights

from dicl_flow import load
from dicl_flow.errors import InputError
from dicl_flow.estimation import compiled, export
from dicl_flow.estimation.export import demo_frames
from dicl_flow.files import read_flow

EXAMPLE = "examples/cpp"
needs_cpp = pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "cmake"))), reason="needs g++ and cmake"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory, request):
    """The example, built against the libtorch of this Python."""
    folder = tmp_path_factory.mktemp("cpp")
    where = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    source = request.config.rootpath / EXAMPLE
    subprocess.run(["cmake", "-S", source, "-B", folder, where], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    return folder / "flow"


def write_frames(folder, size):
    """Two frames of `size` as PPM; return their names and the frames, (1, 3, H, W) uint8."""
    frames = demo_frames(size)
    paths = [folder / f"{size[1]}x{size[0]}-{number}.ppm" for number in (1, 2)]
    for path, frame in zip(paths, frames, strict=True):
        image = frame[0].permute(1, 2, 0).numpy()  # (H, W, 3)
        assert cv2.imwrite(str(path), np.ascontiguousarray(image[..., ::-1]))
    return paths, frames


@needs_cpp
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sizes", "refused"),
    [
        (("--size", f"{SIZE[1]}x{SIZE[0]}"), [SIZE], "unmatched dim value at 2, expected: 96"),
        (("--dynamic",), [SIZE, (37, 51), (8, 8)], "must have one size"),
    ],
)
def test_the_example_writes_the_flow_of_the_estimator(
    run, tmp_path, program, options, sizes, refused
):
    weights, package = make_weights(tmp_path), tmp_path / "x.pt2"
    command = ("export", *options, "--format", "compiled", "-w", weights, "-o", package, "--quiet")
    assert run(*command) == (0, "", "")

    def call(*words):
        """Run the program without any environment."""
        return subprocess.run([program, *words], env={}, capture_output=True, text=True)

    estimator, output = load(weights, "cpu", "fp32", "plain"), tmp_path / "x.flo"
    for size in sizes:
        paths, frames = write_frames(tmp_path, size)
        assert call(package, *paths, output).returncode == 0
        expected = estimator.estimate(*(frame / 255 for frame in frames)).flow
        assert size == (8, 8) or expected.abs().max() > 0.1
        found = torch.from_numpy(read_flow(output)).permute(2, 0, 1)[None]
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    output.unlink()
    other, _ = write_frames(tmp_path, (40, 64))
    wrong = other if options[0] == "--size" else [other[0], paths[0]]
    ended = call(package, *wrong, output)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert refused in ended.stderr
    assert not output.exists()
    about = torch._inductor.aoti_load_package(str(package)).get_metadata()
    assert about["recipe"] == "r"
    assert about["dicl_flow.target"].startswith(
        "CPUs with the instructions in AOTI_CPU_ISA; torch 2"
    )
    assert about["AOTI_CPU_ISA"]


def test_without_a_compiler_nothing_is_traced(run, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "shutil", SimpleNamespace(which=lambda name: None))
    monkeypatch.setattr(export, "_trace", None)
    weights, output = make_weights(tmp_path), tmp_path / "x.pt2"
    arguments = ("--size", "16x16", "--format", "compiled", "-w", weights, "-o", output)
    code, out, err = run("export", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs a C++ compiler" in err
    assert not output.exists()


def test_a_compiler_that_fails_is_one_sentence(monkeypatch):
    from torch._inductor.exc import CppCompileError

    def fail(program, package_path, inductor_configs):
        raise CppCompileError(["g++"], "x.cpp:1:\nno omp.h")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(InputError, match=r"^the C\+\+ compiler failed: x\.cpp:1: no omp\.h$"):
        compiled.encode_compiled(None, {})
