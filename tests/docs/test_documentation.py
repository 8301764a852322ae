"""Every command and every Python block of the documentation runs; links and options exist.

Each page has a folder of its own that holds what the pages presume; its blocks run there in order,
a test each, and see what earlier blocks made. What would take long is made small by `SMALLER`,
what cannot run here is listed in `EXEMPT`. A command that is neither runnable nor listed fails.
"""

import hashlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import exports
import fake_trees
import numpy as np
import pytest
import typer
from conftest import TINY_LEVEL
from small_study import use_small_scenes

import dicl_flow
from dicl_flow import weights as store
from dicl_flow.cli import app, main
from dicl_flow.config import CUES, Calibration
from dicl_flow.data import demo_pairs
from dicl_flow.files import read_image, write_flow
from dicl_flow.training.recipe import read_recipe
from dicl_flow.weights import encode_weights, read_weights

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("benchmarks/*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
    ],
    key=lambda path: path.relative_to(REPOSITORY),
)
SHELL, PYTHON, TEXT = ("sh", "bash", "console"), ("python",), ("", "text", "toml", "json", "csv")

EXEMPT = {
    r"pip install .*": "changes the environment",
    r"git clone .*": "needs the network",
    r"make (test|quick|slow|demo|docs|wheel|campaign)": "builds an environment; CI is `make test`",
    r"make release .*": "takes a GPU and an hour; docs/test_release.py runs its steps",
    r"dicl-flow demo": "cli/test_demo.py runs it",
    r"torchrun .*": "needs several GPUs; training/test_distributed.py runs two processes",
    r"dicl-flow explore.*": "runs until Ctrl-C; web/test_explorer.py runs the command",
    r"dicl-flow video camera:\d .*": "needs a webcam",
    r"python benchmarks/training_speed\.py.*": "needs a GPU and minutes",
    r"python benchmarks/(pwcnet_start|bulk_speed)\.py.*": "needs minutes",
    r"python benchmarks/yardstick\.py.*": "needs all sets; evaluation/test_yardstick.py runs it",
    r"python benchmarks/gather_photos\.py.*": "downloads; render/test_gather_photos.py runs it",
    r"(OMP_NUM_THREADS=1 )?python -m campaigns\.\w+.*": "takes minutes; tests run a slice",
    r"dicl-flow (train live|calibrate -w runs/live/).*": "training/test_live_recipe.py trains it",
    r"dicl-flow analyze \w+ .*figures/.*": "needs the weights of `ablate figures`",
    r"dicl-flow serve.*": "runs until it is stopped; web/test_serve.py runs the command",
    r"curl .*/ID.*": "the id is made by the server; web/test_serve_video.py asks for it",
    r"sbatch .*": "needs Slurm",
    r"dicl-flow bulk .* --ray.*": "starts a cluster; bulk/test_bulk_ray.py runs the command",
    r"ray (start|get-auth-token) .*|export .*": "starts a cluster",
    r"dicl-flow reproduce .*": "several networks; training/test_reproduce.py runs the command",
    r"dicl-flow table2 .*": "scores whole chains; lab/test_table2.py runs the command",
    r"dicl-flow adapt .*": "takes minutes; adaptation/test_adapt.py runs the command",
    r"dicl-flow ablate .*": "several networks each; lab/test_ablation.py runs the command",
    r"(cmake|build/flow) .*": "compiles; estimation/test_compiled.py builds and runs it",
    r"dicl-flow export .*": "takes a minute; support/exports.py runs it for the page",
}
"""Commands that are not run, as whole-line patterns, and why."""

NEEDS = {r"\bexr\b": "OpenEXR", r"\bspring\b": "h5py"}
"""Patterns of commands, and the library of an extra without which they are skipped."""

SMALL_TRAINING = " ".join(
    f"--set {shlex.quote(change)}"
    for change in (
        *("steps=1", "batch=2", "workers=0", "augment.crop=[32,48]", "render.sizes=[]"),
        *("backend=plain", "log_every=1", "validate_every=0"),
        *("optimizer.precision=fp32", "optimizer.accumulate=1"),
        *(TINY_LEVEL, "loss.matched=[0.8]", "loss.matching=[]"),
    )
)
SMALL_PAIR = "--pair frame1.png frame2.png --truth flow.flo"
SMALLER = [
    (r"^(dicl-flow train .*)$", rf"\1 {SMALL_TRAINING}"),
    (r"^(dicl-flow train (?!chairs-0).*)$", r"\1 --set loss.refined=[1.0]"),
    # stages that others start from, by `best.safetensors`
    (r"^(dicl-flow train .* -o runs/authors-.*)$", r"\1 --set validate_every=1"),
    (r"--minutes \S+", "--minutes 0.001"),
    (r"--overfit \d+", "--overfit 2"),
    (r"^(dicl-flow render .*?) -n \d+", r"\1 -n 1"),
    (r"^(dicl-flow render .*?) --frames \d+", r"\1 --frames 2"),
    (r"^(dicl-flow render .*?) --size \S+", r"\1"),
    (r"^(dicl-flow render .*)$", r"\1 --size 96x64"),
    (r"^(dicl-flow data bench .*?) --workers \d+", r"\1 --workers 0 --seconds 0.1 --crop 64x64"),
    (r"^(dicl-flow analyze layers .*)$", r"\1 --size 8x8"),
    (r"^(dicl-flow analyze pixel) \d+ \d+(.*)$", r"\1 40 50\2"),
    (r"^(dicl-flow analyze (peaks|levels|pixel)(?!.*--data).*)$", rf"\1 {SMALL_PAIR}"),
    (r"^(dicl-flow calibrate .*)$", r"\1 --scenes 3 --size 64x64 --threshold 40"),
    (r"^(dicl-flow bench.*?)( --size \S+)?( --device \S+)?( .*)?$", r"\1 --quick --size 64x64\4"),
    (r"^(python benchmarks/frame_sizes\.py) \S+(.*)$", r"\1 tiny.safetensors\2 --sizes 128x128"),
    (r"^(python benchmarks/quality\.py .*?)--size \S+ -n \d+(.*)$", r"\1-n 1 --size 32x32\2"),
    (r"^(python benchmarks/quality\.py .*)$", r"\1 --repeats 1 -w tiny.safetensors"),
    (
        r"^(python benchmarks/training_precision\.py.*)$",
        r"\1 --rehearse --precision fp32 --steps 2",
    ),
    (r"^(dicl-flow track .*) --reference 0,120", r"\1 --reference 0,2"),
    (r"^(dicl-flow track .*)$", r"\1 --intervals 1"),
    (r"\$SLURM_ARRAY_TASK_ID/\d+", "1/1"),
    *([] if find_spec("pyarrow") else [(r"^(dicl-flow bulk .*?)\.parquet", r"\1.csv")]),
    # an ellipsis stands for the reader's folder
    (r"--data (\w[-\w]*)((?::\w+)?)=…", r"--data \1\2=trees/\1"),
    (r" …$", " --data pairs=my-data"),
]
"""(pattern, replacement), applied to each command in this order."""

SMALLER_PYTHON = [
    (r'f"cuda:\{rank\}"|"cuda(:\d)?"', '"cpu"'),
    (r"flows\[1000\]", "flows[1]"),
    (r"(calibrate\(.*)\)\.save", r"\1, scenes=3, size=(64, 64), threshold=40).save"),
    (
        r'"[\w/-]+/dicl-flow", "(estimator|network)"(, source="local")?',
        rf'"{REPOSITORY}", "\1", source="local"',
    ),
    (r'from_pretrained\("[\w-]+/[\w-]+"\)', 'from_pretrained("hub")'),
    (r"^.*\.push_to_hub\(.*$", "pass  # needs an account"),
]
"""(pattern, replacement), applied to each line of Python."""

SERVER = "127.0.0.1:8000"
OPTIONAL = ("pyarrow", "pandas", "duckdb", "webdataset")
"""Modules that Python blocks may import; without them, the block is skipped."""

FOREIGN_OPTIONS = {  # of torchrun, pytest, pip and git
    "--build",  # of cmake
    *("--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--branch", "--help"),
    *("--requeue", "--array"),  # of Slurm
    *(
        "--disable-usage-stats",
        "--object-store-memory",
        "--generate",
        "--head",
        "--address",
    ),  # of Ray
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    line: int
    text: str


def read_blocks(page):
    """All fenced blocks of a page, indented ones too."""
    pattern = r"^( *)```(\w*)[^\n]*\n(.*?)^\1```"
    text = page.read_text()
    for found in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        body = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        yield Block(found[2], text[: found.start()].count("\n") + 2, body)


def read_prose(page):
    """A page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def read_commands(block):
    """The commands of a shell block, one line each, without comments and prompts."""
    text = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":  # the rest is output
        lines = [line.removeprefix("$").strip() for line in lines if line.startswith("$")]
    found = (shlex.split(line, comments=True) for line in lines)
    return [" ".join(map(quote, words)) for words in found if words]


def quote(word):
    """Quoted only where it must be, so that patterns need not think of it."""
    return shlex.quote(word) if re.search(r"[\s'\"]", word) else word


def exempt_reason(command):
    return next((why for pattern, why in EXEMPT.items() if re.fullmatch(pattern, command)), None)


def shrink(text, table):
    for pattern, replacement in table:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


# --- what the pages presume ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tiny_weights, checkpoint):
    """A folder with every file that a page may name."""
    folder = tmp_path_factory.mktemp("prepared")
    make_frames(folder)
    make_trees(folder)
    make_photos(folder / "PHOTOS")
    make_video(folder)
    names = ["W", "my.safetensors", "weights.safetensors", "WEIGHTS.safetensors"]
    for name in [*names, "with-dap.safetensors", "without-dap.safetensors"]:
        (folder / name).symlink_to(tiny_weights)
    best = folder / "runs/paper/things/best.safetensors"  # of `dicl-flow reproduce`
    best.parent.mkdir(parents=True)
    best.symlink_to(tiny_weights)
    exports.make_weights(folder)
    for name in ("ckpt_sintel.pth.tar", "ckpt_kitti.pth.tar"):
        (folder / name).symlink_to(checkpoint)
    for name in ("benchmarks", "docs", "constraints.txt"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


def make_frames(folder):
    """The packaged rendered pair, small, and flow files of it in several formats."""
    pair = demo_pairs()[1]
    for name, path in (("frame1.png", pair.image1), ("frame2.png", pair.image2)):
        image = cv2.resize(read_image(path), (128, 96), interpolation=cv2.INTER_AREA)
        fake_trees.write_image(folder / name, image)
    flow = np.ones((96, 128, 2), np.float32)
    for name in ("flow.flo", "flow.npz", "kitti.png"):
        write_flow(folder / name, flow)
    np.save(folder / "flow.npy", np.stack([flow] * 3))  # of a video


def make_trees(folder):
    """A tiny tree of each data set, under the names of the pages."""
    for name, make in fake_trees.MAKERS.items():
        if name != "spring" or find_spec("h5py"):
            make(folder / "trees" / name)
    names = {
        "chairs": "FlyingChairs_release FLYINGCHAIRS",
        "things-clean": "FlyingThings3D_subset",
        "sintel-clean": "Sintel SINTEL MPI-Sintel-complete",
        "kitti15": "KITTI2015 KITTI",
        "kitti12": "KITTI2012",
        "middlebury": "Middlebury",
        "spring": "SPRING",
        "pairs": "my-data my-pairs MY_DATA HELD_OUT",
    }
    for name, links in names.items():
        for link in links.split():
            (folder / link).symlink_to(folder / "trees" / name)


def make_photos(folder):
    generator = np.random.default_rng(0)
    for number in range(3):
        picture = fake_trees.make_texture(160, 200, generator)
        fake_trees.write_image(folder / f"photo{number}.jpg", picture)


def make_video(folder):
    """clip.mp4, the same frames in shots/, and points.csv to track."""
    import av

    (folder / "points.csv").write_text("frame,x,y\n0,40,30\n2,60,20\n")

    frames, _ = fake_trees.moving_frames(4, (64, 96))
    for number, frame in enumerate(frames):
        fake_trees.write_image(folder / "shots" / f"{number}.png", frame)
    with av.open(str(folder / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def presumed_names():
    """What Python blocks use without making it themselves."""
    frame1, frame2 = (read_image(f"frame{number}.png") for number in (1, 2))
    names = {"dicl_flow": dicl_flow, "np": np, "cv2": cv2, "rank": 0, "Path": Path}
    names |= {"image1": frame1, "image2": frame2, "frame1": frame1, "frame2": frame2}
    names |= {"frames": [frame1, frame2], "pairs": [(frame1, frame2)]}
    names |= {"flow": np.zeros((*frame1.shape[:2], 2), np.float32)}
    names |= {"estimator": dicl_flow.load("W")}
    return names


# --- running ------------------------------------------------------------------------------------


def run_command(command):
    """Run one command in this process; what cannot be run is an error."""
    program, *arguments = shlex.split(shrink(command, SMALLER))
    if program == "python" and arguments and arguments[0].endswith(".py"):
        run_script(arguments)
    elif program == "curl" and shutil.which("curl"):
        subprocess.run([program, "--fail", *arguments], check=True)
    elif program == "dicl-flow":
        with pytest.raises(SystemExit) as exit_info:
            main(arguments)
        assert exit_info.value.code in (0, None), f"exit code {exit_info.value.code}"
    else:
        pytest.fail("cannot be run here: repair it, or list it in EXEMPT with a reason")


def run_script(arguments):
    before = sys.argv
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.argv = before


@pytest.fixture(scope="module", autouse=True)
def small_packaged_weights(tiny_weights, tmp_path_factory):
    """The weights called "rendered" are of the tiny network: a page shows how, not how well."""
    path = tmp_path_factory.mktemp("packaged") / "rendered.safetensors"
    sure = Calibration(1.0, *[0.0] * len(CUES))  # as sure as the pages presume
    path.write_bytes(encode_weights(replace(read_weights(tiny_weights), calibration=sure)))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_PACKAGED", path.parent)
        patch.setitem(store.PACKAGED_SHA256, "rendered", digest)
        use_small_scenes(patch.setattr)
        yield


@pytest.fixture(scope="module")
def pages(prepared, request, tmp_path_factory):
    """The folder and the Python names of each page, made when its first block runs."""

    @lru_cache
    def open_page(page):
        folder = tmp_path_factory.mktemp("page") / "work"
        shutil.copytree(prepared, folder, symlinks=True)
        if str(page.relative_to(REPOSITORY)) == exports.GROUP:
            made = request.getfixturevalue("exported")
            for path in (made.onnx, made.pt2):
                (folder / path.name).symlink_to(path)
        with chdir(folder):
            return folder, presumed_names()

    return open_page


@pytest.fixture(scope="module")
def server(tiny_weights):
    """The address of a server, in place of the one that the pages name."""
    pytest.importorskip("starlette", reason="the extra web is not installed")
    from servers import serving

    with serving(dicl_flow.load(tiny_weights, device="cpu")) as running:
        yield f"{running.host}:{running.port}"


def runnable_blocks():
    """A test for each block, those of a page in one process."""
    for page in PAGES:
        name = str(page.relative_to(REPOSITORY))
        for block in read_blocks(page):
            if block.language in SHELL + PYTHON:
                cost = pytest.mark.slow if name == exports.GROUP else pytest.mark.heavy
                marks = [pytest.mark.xdist_group(name), cost]
                yield pytest.param(page, block, id=f"{name}:{block.line}", marks=marks)


@pytest.mark.parametrize(("page", "block"), list(runnable_blocks()))
def test_every_block_runs(page, block, pages, monkeypatch, request):
    folder, names = pages(page)
    monkeypatch.chdir(folder)
    if SERVER in block.text:
        running = request.getfixturevalue("server")
        block = replace(block, text=block.text.replace(SERVER, running))
    if block.language in PYTHON:
        text = shrink(block.text, SMALLER_PYTHON)
        for module in re.findall(r"^import (\w+)", text, re.MULTILINE):
            if module in OPTIONAL:
                pytest.importorskip(module, reason=f"{module} is not installed")
        exec(compile(text, f"{page.name}:{block.line}", "exec"), names)
        return
    for command in read_commands(block):
        for library in (name for pattern, name in NEEDS.items() if re.search(pattern, command)):
            pytest.importorskip(library, reason=f"{library} is not installed")
        if exempt_reason(command) is None:
            print(command)
            run_command(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_blocks_say_their_language(page):
    for block in read_blocks(page):
        assert block.language in SHELL + PYTHON + TEXT, f"line {block.line}: {block.language}"
        if block.language in TEXT:  # what is not run is no command
            assert not re.search(r"^\s*(\$|dicl-flow|python3?) ", block.text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_table_begins_with_its_head(page):
    """An empty line among the rows would make text of the rest."""
    for table in re.findall(r"(?:^\|.*\n)+", read_prose(page), re.MULTILINE):
        head, rule, *_ = [*table.splitlines(), ""]
        assert re.fullmatch(r"\|(:?-+:?\|)+", rule.replace(" ", "")), head


def test_an_unknown_command_fails():
    with pytest.raises(pytest.fail.Exception, match="EXEMPT"):
        run_command("wget http://somewhere")
    with pytest.raises(AssertionError, match="exit code 2"):
        run_command("dicl-flow show nowhere.flo")


def test_what_is_not_run_has_a_reason():
    assert all(EXEMPT.values())
    assert exempt_reason("dicl-flow flow a.png b.png -o x.flo") is None
    assert exempt_reason("make test") == EXEMPT[r"make (test|quick|slow|demo|docs|wheel|campaign)"]


# --- what can be checked without running --------------------------------------------------------


def walk(command, path=()):
    """Every command with its own words."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


COMMANDS = dict(walk(typer.main.get_command(app)))
OPTIONS = {
    path: {word for p in command.params for word in (*p.opts, *p.secondary_opts)}
    for path, command in COMMANDS.items()
}
OPTIONS[("bulk",)] |= OPTIONS[("bulk", "run")]  # `bulk MANIFEST` is `bulk run MANIFEST`


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_options_and_inline_commands_exist(page):
    places = ("benchmarks", "campaigns")
    scripts = "".join(p.read_text() for place in places for p in REPOSITORY.glob(f"{place}/*.py"))
    known = set().union(*OPTIONS.values(), re.findall(r'"(--[a-z-]+)"', scripts)) | FOREIGN_OPTIONS
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", read_prose(page))]
    shell = [block for block in read_blocks(page) if block.language in SHELL]
    not_run = [line for block in shell for line in read_commands(block) if exempt_reason(line)]
    for span in [*spans, *not_run]:
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", span)) <= known, span
        words = span.split()
        if words[0] == "dicl-flow" and len(words) > 1:
            depth = 2 if tuple(words[1:3]) in COMMANDS else 1
            path = tuple(words[1 : 1 + depth])
            assert path in COMMANDS or words[1].startswith("-"), span
            assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", span)) <= OPTIONS.get(path, known), span
        if words[0] == "pytest":
            assert (REPOSITORY / words[1].split("::")[0]).exists(), span


def test_every_change_that_the_page_on_the_paper_names_is_accepted():
    page = (REPOSITORY / "docs/reproducing.md").read_text()
    section = page.split("## Paper, code and ours")[1].split("\n## ")[0]
    changes = re.findall(r"(?:`|--set )([a-z_.]+=[^`\s]+)", section)
    assert len(changes) > 12
    for change in changes:
        stage = "chairs-0" if change.startswith("loss.matched=[0.5") else "chairs-2"
        read_recipe(stage, [change])


def heading_names(page):
    """The anchors of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", read_prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", read_prose(page)):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in heading_names(file), target


def test_every_benchmark_is_cited_by_the_pages_that_its_readme_names():
    rows = re.findall(
        r"^- `(\w+\.py)`((?:.|\n)*?)(?=^- |\Z)",
        (REPOSITORY / "benchmarks/README.md").read_text(),
        re.MULTILINE,
    )
    scripts = [path.name for path in (REPOSITORY / "benchmarks").glob("*.py")]
    assert [script for script, _ in rows] == sorted(scripts)
    for script, row in rows:
        pages = re.findall(r"\]\(([^)]+)\)", row)
        assert pages, script
        for page in pages:
            assert script in (REPOSITORY / "benchmarks" / page).read_text(), (script, page)


def test_the_index_lists_every_how_to():
    folder = REPOSITORY / "docs" / "how-to"
    index = (folder / "README.md").read_text()
    for page in folder.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
