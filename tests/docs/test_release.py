"""A release: nothing is installed unless all is made, and the pages show the stored numbers."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import release, release_tables
from benchmarks.release import HISTORY, INSTALL, PACKAGED, RECORD, STEPS, STORE, Release, Step
from dicl_flow.config import LevelConfig, ModelConfig
from dicl_flow.errors import InputError
from dicl_flow.models import build
from dicl_flow.weights import PACKAGED_SHA256, Weights, encode_weights, read_weights, resolve

ROOT = release.ROOT
TINY = ModelConfig(levels=(LevelConfig(4, 1),), projection=False, context=False)
NEW = encode_weights(Weights(TINY, build(TINY).half().state_dict(), {"recipe": "none"}))

NUMBERS = [
    *(path for step in STEPS.values() for path in step.files if path.startswith("benchmarks/")),
    *("docs/analysis/levels.json", "docs/analysis/kernels.json"),
    *("docs/ablations/figures.json", "docs/reliability/known-motion.json"),
]
"""What the tables are made of."""


@pytest.fixture
def tree(tmp_path):
    """A copy of what a release reads, with a package of two files."""
    root = tmp_path / "tree"
    for path in (*release_tables.PAGES, *NUMBERS, release_tables.EARLIER, HISTORY, RECORD, STORE):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes((ROOT / path).read_bytes())
    for page in {page.partition("#")[0] for step in STEPS.values() for page in step.pages}:
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        (root / page).write_bytes((ROOT / page).read_bytes())
    (root / PACKAGED).write_bytes(b"old weights")
    return root


@pytest.fixture
def fake(tree, tmp_path):
    """A release whose steps write files of the right names at once."""
    steps = {}
    for name, step in STEPS.items():
        made = dict.fromkeys(step.files, b"new")
        made |= {path: (ROOT / path).read_bytes() for path in step.files if path in NUMBERS}
        made |= {PACKAGED: NEW} if PACKAGED in step.files else {}
        old, new = PACKAGED_SHA256["rendered"].encode(), release.digest(NEW).encode()
        made = {path: content.replace(old, new) for path, content in made.items()}
        made |= dict.fromkeys(step.notes, b"a note")
        script = tree / f"{name}.py"
        lines = ["from pathlib import Path"]
        for path, content in made.items():
            lines.append(f"Path({path!r}).parent.mkdir(parents=True, exist_ok=True)")
            lines.append(f"Path({path!r}).write_bytes({content!r})")
        script.write_text("\n".join(lines))
        files = {path: path for path in step.files}
        steps[name] = replace(step, commands=(f"python {script.name}",), files=files)
    return Release(b"candidate", tmp_path / "work", steps=steps, root=tree)


def contents(root):
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_every_file_of_a_step_is_in_the_tree():
    paths = [path for step in STEPS.values() for path in step.files]
    assert len(paths) == len(set(paths)) > 25
    for path in paths:
        assert (ROOT / path).is_file(), path
    for step in STEPS.values():
        assert set(step.after) <= set(STEPS)
        for page in step.pages:
            path, _, section = page.partition("#")
            assert list(release.number_sentences((ROOT / path).read_text(), section)), page


def test_everything_was_made_with_the_packaged_weights():
    """A release that was not finished, or weights that were packaged by hand, fail here."""
    packaged = PACKAGED_SHA256["rendered"]
    record = json.loads((ROOT / RECORD).read_text())
    assert record["weights"] == packaged, "package weights with `make release`"
    assert set(record["steps"]) == set(STEPS)
    for name in release.FIGURES:
        figure = ROOT / f"docs/ablations/figures/{name}.safetensors"
        assert read_weights(figure).base.sha256 == packaged
    stored = json.loads((ROOT / release_tables.YARDSTICK).read_text())["methods"]
    assert {one["weights"] for one in stored.values() if "weights" in one} == {packaged}


@pytest.mark.parametrize("quality", release.QUALITIES)
def test_the_calibration_is_that_of_the_packaged_weights(quality):
    """The file with the weights says how good its calibration is."""
    topic = "calibration" if quality == "normal" else f"calibration of quality {quality}"
    said = read_weights(resolve("rendered")).about[topic]
    path = ROOT / release_tables.RESULTS / f"calibration-{quality}.json"
    found = json.loads(path.read_text())
    assert f"AUSE {found['ause']:.3f}, " in said
    assert f"calibration error {found['calibration_error']:.3f} on" in said


def test_the_packaged_weights_carry_their_history():
    about = read_weights(resolve("rendered")).about
    history = json.loads((ROOT / HISTORY).read_text())
    assert {key: about[key] for key in history} == history


def test_the_tables_show_the_stored_numbers():
    for page, text in release_tables.fill(ROOT, {}).items():
        assert (ROOT / page).read_bytes() == text, "python -m benchmarks.release --tables fills it"


def test_a_table_is_replaced_and_nothing_else():
    text = "a\n<!-- release: one -->\nold\n<!-- end -->\nb\n"
    new = "a\n<!-- release: one -->\nnew\n<!-- end -->\nb\n"
    assert release_tables.insert("page", text, "one", "new\n") == new
    with pytest.raises(InputError, match="page lacks <!-- release: two -->"):
        release_tables.insert("page", text, "two", "new\n")
    with pytest.raises(InputError, match="lacks"):
        release_tables.insert("page", text.replace("<!-- end -->", ""), "one", "new\n")


def test_a_quality_that_was_not_measured_keeps_its_row(tree):
    """A row of the packaged weights that was stored before is shown, once, until it is measured."""
    document = json.loads((tree / release_tables.YARDSTICK).read_text())
    methods = document["methods"]
    methods["rendered"]["weights"] = "0123456789"
    methods.pop("rendered best", None)
    rows = {"weights 01234567, `--quality best`": [7.25] * 7, "others": [1.5, None, *[3] * 5]}
    new = {release_tables.YARDSTICK: document, release_tables.EARLIER: rows}
    pages = release_tables.fill(tree, {path: json.dumps(new[path]).encode() for path in new})
    readme = pages["README.md"].decode()
    assert "0123" not in readme
    assert f"| `rendered`, `--quality best` | | |{' 7.25 |' * 6}\n" in readme
    methods["rendered best"] = {**methods["rendered"], "quality": "best"}
    pages = release_tables.fill(tree, {path: json.dumps(new[path]).encode() for path in new})
    assert "7.25" not in b"".join(pages.values()).decode()


@pytest.mark.heavy
def test_a_release_installs_weights_files_and_pages_together(fake, capsys):
    release.run_release(fake, release.choose_steps("all", STEPS))
    new = (fake.root / PACKAGED).read_bytes()
    about = read_weights(fake.root / PACKAGED).about
    assert about["recipe"].startswith("rendered-0 (5464 steps")
    assert re.search(r"KITTI-15 stereo \d\.\d\d / \d\.\d\d \(20\)", about["metrics"])
    sha256 = release.digest(new)
    stored = json.loads((fake.root / release_tables.YARDSTICK).read_text())["methods"]
    assert {one["weights"] for one in stored.values() if "weights" in one} == {sha256}
    assert f'"rendered": "{sha256}"' in (fake.root / STORE).read_text()
    assert json.loads((fake.root / RECORD).read_text())["weights"] == sha256
    earlier = json.loads((fake.root / release_tables.EARLIER).read_text())
    old = PACKAGED_SHA256["rendered"][:8]
    assert next(iter(earlier)) == f"weights {old}"
    printed = capsys.readouterr().out
    assert "docs/reliability.md:" in printed
    assert "1,578,843 pairs in all" in printed
    release.run_release(fake, ["demo"])
    assert "demo: done before" in capsys.readouterr().out


@pytest.mark.heavy
def test_two_halves(fake, capsys):
    release.run_release(fake, release.choose_steps("gpu", STEPS))
    before = contents(fake.root)
    assert all(fake.is_done(name) == step.gpu for name, step in STEPS.items())
    with pytest.raises(InputError, match="nothing is installed: not done are figures-2-4, "):
        fake.install()
    assert contents(fake.root) == before
    release.run_release(fake, release.choose_steps("cpu", STEPS))
    assert (fake.root / PACKAGED).read_bytes() == fake.described()


@pytest.mark.parametrize("kept", [{}, {"4.0": torch.ones(2, 3)}])
def test_weights_that_only_add_are_installed_at_once(tree, tmp_path, kept):
    found = replace(read_weights_of(NEW, tmp_path), extremes=kept)
    packaged = encode_weights(found)
    before = release.digest(packaged)
    (tree / PACKAGED).write_bytes(packaged)
    (tree / "docs/page.json").write_text(f"of {before}, or {before[:12]}")
    extremes = {**kept, "4.1": torch.ones(3)}
    more = replace(found, extremes=extremes, about={"more": "yes"})
    candidate = tmp_path / "candidate.safetensors"
    candidate.write_bytes(encode_weights(more))
    written = release.extend(tree, candidate)
    assert sorted(written) == ["docs/page.json", PACKAGED]
    installed = (tree / PACKAGED).read_bytes()
    after = release.digest(installed)
    assert (tree / "docs/page.json").read_text() == f"of {after}, or {after[:12]}"
    assert read_weights_of(installed, tmp_path).extremes.keys() == {*extremes}


@pytest.mark.parametrize("kind", ["tensors", "calibration", "extremes"])
def test_weights_that_change_more_are_refused(tree, tmp_path, kind):
    found = replace(read_weights_of(NEW, tmp_path), extremes={"4.0": torch.ones(2, 3)})
    (tree / PACKAGED).write_bytes(encode_weights(found))
    before = contents(tree)
    others = {
        "tensors": {key: tensor + 1 for key, tensor in found.tensors.items()},
        "calibration": read_weights(resolve("rendered")).calibration,
        "extremes": {"4.0": torch.zeros(2, 3), "4.1": torch.ones(3)},
    }
    candidate = tmp_path / "candidate.safetensors"
    candidate.write_bytes(encode_weights(replace(found, **{kind: others[kind]})))
    with pytest.raises(InputError, match=r"changes what the packaged weights .* hold; release"):
        release.extend(tree, candidate)
    assert contents(tree) == before


def read_weights_of(data, folder):
    path = folder / "read.safetensors"
    path.write_bytes(data)
    return read_weights(path)


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        (("python -c 'import sys; sys.exit(\"no space\")'",), "failed with exit code 1: no space"),
        (("python -c 'pass'",), "has not written shifts.svg"),
        (("python -c 'import time; time.sleep(99)'",), "took more than 0.001 minutes"),
    ],
)
def test_a_step_that_fails_is_named_and_installs_nothing(fake, commands, said):
    before = contents(fake.root)
    broken = Step(commands, {"docs/reliability/shifts.svg": "shifts.svg"}, minutes=0.001, after=())
    broken = replace(broken, minutes=0.001 if "sleep" in commands[0] else 1)
    failing = replace(fake, steps={"known-motion": broken})
    with pytest.raises(InputError, match=f"step known-motion .*{said}"):
        release.run_release(failing, ["known-motion", INSTALL])
    assert contents(fake.root) == before
    assert not failing.is_done("known-motion")


def test_what_was_made_is_checked(fake):
    """A file that was changed or is gone, and other weights, mean that a step runs again."""
    release.run_release(fake, ["calibrate"])
    assert fake.is_done("calibrate")
    assert not replace(fake, weights=b"others").is_done("calibrate")
    fake.made(PACKAGED).write_bytes(b"damaged")
    assert not fake.is_done("calibrate")
    with pytest.raises(InputError, match="step demo needs calibrate, which is not done"):
        fake.run("demo")


def test_steps_see_the_new_weights(fake):
    """The package of a step has the candidate's weights and their sha256."""
    code = "import dicl_flow.weights as s; print(s.PACKAGED_SHA256['rendered'], s.__file__)"
    looking = Step((f'python -c "{code}" > seen.txt',), notes=("seen.txt",))
    (fake.root / "src/dicl_flow/__init__.py").write_text("")
    store = fake.root / STORE
    text = store.read_text()
    start = text.index("PACKAGED_SHA256")
    store.write_text(text[start : text.index("}", start) + 2])
    looking = replace(fake, steps={**fake.steps, "demo": looking})
    release.run_release(looking, ["calibrate", "demo"])
    seen = (looking.made("notes/demo/seen.txt")).read_text().split()
    assert seen[0] == release.digest(NEW)
    assert Path(seen[1]).is_relative_to(fake.folder)


def test_steps_that_need_a_folder_say_so(fake, tmp_path):
    photos = Step(("python -c 'pass' PHOTOS",), after=())
    with pytest.raises(InputError, match=r"step one needs a folder: --photos \(given: None\)"):
        replace(fake, steps={"one": photos}).run("one")


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["release.py", *map(str, arguments)])
    code = 0
    try:
        release.main()
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_dry_run_lists_all_steps_commands_and_files(monkeypatch, capsys):
    code, out, err = command(monkeypatch, capsys, "--dry-run")
    assert (code, err) == (0, "")
    for name, step in STEPS.items():
        for word in (f"{name} (", *step.commands, *step.files):
            assert word in out
    assert out.splitlines()[-len(release_tables.PAGES) - 1].startswith(f"{INSTALL}: ")
    code, out, _ = command(monkeypatch, capsys, "--dry-run", "--steps", "demo,calibrate")
    assert [line.split()[0] for line in out.splitlines() if line[0] != " "] == ["calibrate", "demo"]


def test_what_cannot_be_released_is_refused(monkeypatch, capsys, tmp_path):
    wrong = {
        ("--steps", "figure"): "unknown step 'figure'; did you mean 'figures'",
        (): "give the weights to package",
        (tmp_path / "no.safetensors",): "no weights file at",
    }
    for arguments, said in wrong.items():
        code, out, err = command(monkeypatch, capsys, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("error: ")
        assert said in err


def test_sentences_with_numbers():
    text = "# 1 title\n\nA 0.5 px error.\nNone.\n| 7 | 8 |\n```sh\nrun 3\n```\nSee [a](b9.md).\n"
    assert list(release.number_sentences(text)) == [(3, "A 0.5 px error.")]
    more = f"{text}## Why is it?\nOf 3.\n## Other\nOf 4.\n"
    assert list(release.number_sentences(more, "why-is-it")) == [(11, "Of 3.")]


def test_the_makefile_passes_everything_on():
    words = ["WEIGHTS=a b.safetensors", "STEPS=gpu", "PHOTOS=p", "DATASETS=d", "WORK=w"]
    make = ["make", "--no-print-directory", "--dry-run", "release"]
    made = subprocess.run([*make, *words], cwd=ROOT, capture_output=True, text=True)
    line = made.stdout.replace("\\\n", " ").splitlines()[-1]
    options = ["--steps", "gpu", "--photos", "p", "--datasets", "d", "--work", "w"]
    assert shlex.split(line)[1:] == ["-m", "benchmarks.release", "a b.safetensors", *options]
