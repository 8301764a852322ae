"""Numbers in the pages are those of the files that they come from.

A sentence is given with `{}` for each number, a table by the start of its header. Both must be on
their page, once, and each number must be the value rounded to the digits that are printed.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from dicl_flow.weights import read_weights, resolve

ROOT = Path(__file__).parents[2]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
ABLATIONS, CARD = "docs/ablations/README.md", "docs/model-card.md"
WEIGHTS = "docs/measurements/weights.md"
TRACKS = "docs/measurements/tracks.md"
INT8 = "docs/decisions/0016-int8-where-there-is-vnni.md"
LIVE = "docs/decisions/0015-live-searches-less-far.md"
ADAPTING = "docs/decisions/0017-adaptation-learns-from-scenes-too.md"
ADAPTED = "benchmarks/results/adapt_domains.json"
Row = Sequence[float] | None


# --- the files -----------------------------------------------------------------------------------


@cache
def load(path):
    return json.loads((ROOT / path).read_text())


def runs(study, variant):
    """Both seeds of a variant of an ablation."""
    return load(f"docs/ablations/{study}.json")["variants"][variant]


def scores(study, variant, data="held-out", metric="epe"):
    """A metric of those seeds that were scored on `data`."""
    found = (run["scores"].get(data) for run in runs(study, variant))
    return [score["metrics"][metric] for score in found if score]


def published(study, variant, column):
    rows = load(f"docs/ablations/{study}.json")["published"]
    return next(row[column] for row in rows if row["variant"] == variant)


def bench(name, backend, precision):
    """The measurement of one pair of 1024x436."""
    return next(
        row
        for row in load(f"benchmarks/results/{name}.json")["results"]
        if (row["width"], row["batch"]) == (1024, 1)
        and (row["backend"], row["precision"]) == (backend, precision)
    )


def first(name, cache="-"):
    """The parts of a first result, in the order of the table."""
    found = load(f"benchmarks/results/first_{name}.json")["first"]
    keys = ["torch", "import", "weights", "prepare", "estimate", "other", "total", "beyond_torch"]
    return next([row[key] for key in keys] for row in found if row["cache"] == cache)


def figure4(key):
    return [row[key] for row in load("docs/ablations/figures/figure4.json")["found"].values()]


@cache
def about():
    """What the packaged weights record about themselves."""
    return read_weights(resolve("rendered")).about


def calibration(suffix=""):
    pattern = rf"AUSE ({NUMBER}), calibration error ({NUMBER})"
    return [float(n) for n in re.search(pattern, about()[f"calibration{suffix}"]).groups()]


def minutes():
    return numbers(about()["training"].split(" minutes")[0])


# --- the pages -----------------------------------------------------------------------------------


def read_page(page):
    return (ROOT / page).read_text()


def printed(text):
    """The numbers of a text, each with half of its last digit."""
    found = re.findall(NUMBER, re.sub(r"`[^`]*`|s0-10|s10-40|s40\+", "", text))
    return [(float(n.replace(",", "")), 0.5 * 10.0 ** -len(n.partition(".")[2])) for n in found]


def numbers(text):
    return [number for number, _ in printed(text)]


def find_table(page, header):
    """The rows of a table below the header that starts so, as lists of cells."""
    pattern = rf"^{re.escape(header)}.*\n\|[-:| ]+\|\n((?:\|.*\n)+)"
    (body,) = re.findall(pattern, read_page(page), re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in body.splitlines()]


def check(text, values):
    found = printed(text)
    assert len(found) == len(values), f"{text}: expected {values}"
    for (number, half), value in zip(found, values, strict=True):
        assert abs(number - value) <= 1.001 * half, f"{text}: {number}, but the file has {value}"


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page; whitespace does not matter."""

    page: str
    text: str
    values: Callable[[], Sequence[float]]

    def check(self):
        parts = map(re.escape, " ".join(self.text.split()).split("{}"))
        pattern = f"({NUMBER})".join(parts)
        found = re.findall(pattern, " ".join(read_page(self.page).split()))
        assert len(found) == 1, f"{self.page}: found {len(found)} times: {self.text}"
        check(" ".join([found[0]] if isinstance(found[0], str) else found[0]), self.values())


@dataclass(frozen=True)
class Table:
    """All rows of a table, without their first `labels` cells; None: a row that has no file."""

    page: str
    header: str
    rows: Callable[[], Sequence[Row]]
    labels: int = 1

    def check(self):
        rows, expected = find_table(self.page, self.header), self.rows()
        assert len(rows) == len(expected), f"{self.page}: {self.header}"
        for row, values in zip(rows, expected, strict=True):
            if values is not None:
                check(" ".join(row[self.labels :]), values)


@dataclass(frozen=True)
class Column:
    """One column of a table, from top to bottom."""

    page: str
    header: str
    column: int
    values: Callable[[], Sequence[float]]

    def check(self):
        rows = find_table(self.page, self.header)
        check(" ".join(row[self.column] for row in rows), self.values())


# --- what the pages say --------------------------------------------------------------------------

METRICS = "dot product", "cosine", "MLP", "reduced DICL", "DICL"
HOSTS = "PWC-Net", "PWC-Net + DICL", "VCN", "VCN + DICL"


def metric_rows():
    def held_out(metric, seed):
        found = [scores("metrics", name, metric=metric)[seed] for name in METRICS]
        averaged = scores("reduced", "reduced DICL", metric=metric)[seed]
        with_dap = scores("projection", "DICL", metric=metric)[seed]
        return [*found[:4], averaged, found[4], with_dap]

    def real(data):
        found = [scores("metrics", name, data)[0] for name in METRICS]
        return [*found, scores("projection", "DICL", data)[0]]

    def paper(column):
        return [published("metrics", name, column) for name in METRICS]

    clean = [*paper("sintel_clean_epe"), published("projection", "DICL", "sintel_clean_epe")]
    return [
        *(held_out(metric, seed) for metric in ("epe", "over_1px") for seed in (0, 1)),
        *(real("sintel-clean"), clean),
        *(real("chairs:all"), paper("chairs_epe")),
    ]


def host_rows():
    dicl = ("projection", "DICL without DAP"), ("projection", "DICL")
    both = [*(("hosts", name) for name in HOSTS), *dicl]
    paper = [published("hosts", name, "chairs_epe") for name in HOSTS]
    return [
        *(
            [scores(*variant, metric=metric)[seed] for variant in both]
            for metric in ("epe", "over_1px")
            for seed in (0, 1)
        ),
        [*paper, published("metrics", "DICL", "chairs_epe")],
    ]


def of_seeds(study, variant):
    return mean(scores(study, variant))


def peaks():
    return load("docs/analysis/peaks-sintel.json")["found"].values()


def claims():
    """The rows of the page of claims that name numbers; None: they are elsewhere."""
    names = "DICL", "dot product", "cosine", "MLP"
    found = {name: of_seeds("metrics", name) for name in names}
    paper = {name: published("metrics", name, "sintel_clean_epe") for name in METRICS}
    with_dap = published("projection", "DICL", "sintel_clean_epe")
    dap = [of_seeds("projection", name) for name in ("DICL without DAP", "DICL")]
    hosts = {
        name: [of_seeds("hosts", name), published("hosts", name, "chairs_epe")] for name in HOSTS
    }
    gains = [
        100 * (1 - after / before)
        for column in (1, 0)
        for before, after in (
            (hosts["PWC-Net"][column], hosts["PWC-Net + DICL"][column]),
            (hosts["VCN"][column], hosts["VCN + DICL"][column]),
        )
    ]
    others = *(found[name] for name in names), of_seeds("reduced", "reduced DICL")
    layers = {row["name"]: row for row in load("docs/analysis/layers.json")["layers"]}
    vcn, ours = layers["VCN, separable"], layers["matching net, one by one"]
    memory = find_table("docs/architecture.md", "| | `dicl` |")[0]
    milliseconds = host_milliseconds()
    return [
        None,
        [paper["DICL"], *(paper[name] for name in METRICS[:4]), *others],
        [paper["MLP"], paper["cosine"], found["MLP"], found["cosine"]],
        [paper["DICL"], with_dap, *dap],
        None,
        None,
        None,
        gains,
        [
            vcn["parameters"] / ours["parameters"],
            vcn["measured_bytes"] / ours["measured_bytes"],
        ],
        [1.1, 1.9, float(memory[1]), float(memory[4])],
        [80, 180, milliseconds[0], milliseconds[3]],
        None,
    ]


def vcn_ratios():
    memory = find_table("docs/architecture.md", "| | `dicl` |")[0]
    seconds = bench("h200_vcn", "plain", "fp32")["seconds"]
    return [
        float(memory[4]) / float(memory[1]),
        seconds / bench("h200", "plain", "fp32")["seconds"],
        1.9 / 1.1,  # of the paper
        *(1.9, 1.1, 180 / 80, 180, 80),
    ]


def host_milliseconds():
    rows = [("h200", "plain", "fp32"), ("h200", "fast", "fp16")]
    rows += [("h200_pwcnet", "plain", "fp32"), ("h200_vcn", "plain", "fp32")]
    return [1000 * bench(*row)["seconds"] for row in rows]


def cpu_ratios():
    found = [bench(name, "fast", "fp32")["ratio"] for name in ("amx", "arm", "avx512")]
    return [min(found), max(found)]


def first_rows():
    h200 = (first("h200", cache) for cache in ("empty", "full"))
    return [None, first("avx512"), first("amx"), *h200]


def arms():
    """Mean EPE of each run on each set of the yardstick, then of all sets."""
    arms, parts = (load(f"benchmarks/results/{name}.json")["methods"] for name in ("arms", "parts"))
    runs = [*(arms[name] for name in ("solid-start", "layers", "mixed", "solid")), *parts.values()]
    for run in runs:
        pairs = (
            [total / n for total, n in (p["epe"] for p in s.values())]
            for s in run["scores"].values()
        )
        errors = [mean(found) for found in pairs]
        yield [*errors, mean(errors)]


def held_out():
    found = load("benchmarks/results/held_out.json")
    return [mean(kind["epe"] for kind in found[name].values()) for name in ARMS]


def on_layers():
    found = load("benchmarks/results/held_out.json")
    *others, alone = (found[name]["layers"]["epe"] for name in ARMS)
    return [alone, min(others), max(others)]


def precisions():
    """The columns of the table of training precisions."""
    pixels = 256 * 384
    for row in load("benchmarks/results/precision.json")["rows"]:
        step = row["milliseconds"]
        yield [step, row["batch"] * pixels / step / 1000, row["peak_gib"]]


def track_memory():
    """Of the GPU and of the process, after few frames and after many: the same."""
    found = load("benchmarks/results/tracks-memory.json")["gibibytes_after"]
    early, late = found.items()
    assert late[1] == pytest.approx(early[1], rel=0.01)
    return [*late[1].values(), int(early[0]), int(late[0])]


def track_methods():
    """The columns of the table of tracks: shares in percent, then px."""
    for found in load("benchmarks/results/tracks.json")["means"].values():
        shares = ["average_jaccard", *(f"within_{px}" for px in (1, 2, 4, 8, 16))]
        shares += ["position_accuracy", "occlusion_accuracy"]
        yield [*(100 * found[key] for key in shares), found["mean_error"], found["median_error"]]


def track_ratios():
    found = load("benchmarks/results/tracks.json")["ratios"]
    return [*found["average Jaccard"], *found["error in the last frame"]]


def int8_times():
    """Of each quality: ms in float32 and in int8, times faster."""
    for found in load("benchmarks/results/int8.json")["milliseconds"].values():
        exact, int8 = found["fp32"], found["int8"]
        yield [exact["minimum"], int8["minimum"], int8["times faster"]]


def int8_errors():
    """Of each set, for "normal" and for "live": both EPEs, and the distance in px."""
    found = load("benchmarks/results/int8.json")["pairs"]
    keys = ("fp32 EPE", "int8 EPE", "int8 px")
    for name in found["normal"]:
        sets = [found[quality][name].values() for quality in ("normal", "live")]
        yield [mean(one[key] for one in pairs) for pairs in sets for key in keys]


def int8_distances():
    found = load("benchmarks/results/int8.json")["mean of the sets"]
    return [found[quality]["int8 px"] for quality in ("normal", "live")]


def live_rows():
    """The fastest first: ms, times faster than "normal", EPE, and its share of that of "normal"."""
    found = load("benchmarks/results/live.json")["methods"]
    normal = found["normal"]
    for one in sorted(found.values(), key=lambda one: one["processor_seconds"]):
        faster = normal["processor_seconds"] / one["processor_seconds"]
        yield [1000 * one["processor_seconds"], faster, one["epe"], one["epe"] / normal["epe"]]


def live_parts():
    """Of each combination: the EPE with parts cut out and trained, and its share of normal's."""
    found = load("benchmarks/results/live_parts.json")["methods"]
    normal = found.pop("33333")["cut out"]["epe"]
    for kinds in found.values():
        errors = [kinds[which]["epe"] for which in ("cut out", "trained")]
        yield [*errors, *(error / normal for error in errors)]


def live_speeds():
    found = load("benchmarks/results/live-speed.json")["timed"]
    for name in ("live", "fast", "normal", "dis"):
        keys = [key for key in (f"{name} pair", f"{name} video") if key in found]
        times = [found[key]["seconds"] for key in keys]
        yield [value for seconds in times for value in (1000 * seconds, 1 / seconds)]


def half_precision():
    """Of the pairs: both mean EPEs, the largest change of one, mean and largest distance."""
    pairs = load("benchmarks/results/exported_half.json")["pairs"].values()
    epe = [mean(pair[name] for pair in pairs) for name in ("fp16", "fp32")]
    apart = [pair["mean_distance"] for pair in pairs]
    change = max(abs(pair["fp16"] - pair["fp32"]) for pair in pairs)
    return [len(pairs), *epe, change, mean(apart), max(apart)]


def imitation():
    """The errors of each domain, with the default agreement."""
    for found in load("benchmarks/results/adapt_potential.json")["domains"].values():
        gains = [found["0.005, 0.3 px"][key] for key in ("gain_of_best_alone", "gain")]
        after = [found["normal"] * (1 - gain) for gain in gains]
        yield [found["normal"], found["best"], *after]


def looks():
    """The errors of the scenes of each domain, by how they look."""
    for found in load("benchmarks/results/adapt_looks.json")["domains"].values():
        yield [found[kind] for kind in ("plain", "domain", "looked")]


@cache
def adapted(domain, share, variant="default"):
    """The mean EPE of a domain after a run, so far on the way; None: not scored."""
    name = "every/scenes/0" if variant == "scenes" else f"{domain}/{variant}/0"
    found = load(ADAPTED)["runs"][name]["by_share"].get(share)
    return found and mean(found[domain])


def gains():
    """The errors of each domain before, of the control and adapted; the last may be missing."""
    for domain, before in load(ADAPTED)["before"].items():
        control = [adapted(domain, share, "scenes") for share in ("0.5", "1.0")]
        after = [adapted(domain, share) for share in ("0.5", "0.7", "1.0")]
        yield [mean(before), *control, *filter(None, after)]


def rise_elsewhere(share):
    """The largest rise in percent on a domain that was not adapted to, and which domain that is."""
    before, rises = load(ADAPTED)["before"], []
    for name, run in load(ADAPTED)["runs"].items():
        domain, variant, _ = name.split("/")
        if variant == "default" and share in run["by_share"]:
            others = ((d, e) for d, e in run["by_share"][share].items() if d != domain)
            rises += [(100 * (mean(errors) / mean(before[d]) - 1), d) for d, errors in others]
    return max(rises)


def worst_thermal_clip():
    """The EPE before and after of the clip that gets worst, and by how much the others fall."""
    before = load(ADAPTED)["before"]["thermal"]
    after = load(ADAPTED)["runs"]["thermal/default/0"]["by_share"]["0.7"]["thermal"]
    pairs = sorted(zip(before, after, strict=True), key=lambda pair: pair[1] - pair[0])
    rest = [sum(errors) for errors in zip(*pairs[:-1], strict=True)]
    return [*pairs[-1], 100 * (1 - rest[1] / rest[0])]


def real_clips():
    """Warping error and disagreement of each clip, before and after."""
    for found in load("benchmarks/results/adapt_clips.json")["clips"].values():
        kinds = found["census"], found["disagreement"]
        yield [kind[when] for kind in kinds for when in ("before", "after")]


ARMS = ("start", "layers", "mixed", "solid")
CLAIMS = [
    Table(
        "docs/measurements/training-speed.md",
        "| precision, pairs a step |",
        lambda: list(precisions()),
    ),
    # ablations
    Table("docs/claims.md", "| claim |", claims),
    Sentence(
        "docs/claims.md",
        """on the three Sintel pairs, from {} before DAP to {} after, and so does the EPE before the
        context net, from {} to {} px""",
        lambda: [row[key] for key in ("median_d_peak", "epe_soft_argmin") for row in peaks()],
    ),
    Table("docs/measurements/ablations.md", "| without DAP |", metric_rows),
    Table("docs/measurements/ablations.md", "| | PWC-Net |", host_rows),
    Table(
        ABLATIONS,
        "| variant | dot product |",
        lambda: [[scores("figures", name)[0] for name in (*METRICS, "DICL with DAP")]],
    ),
    Sentence(
        ABLATIONS,
        """The medians are {} in the network without DAP, and in the one with it {} before DAP and
        {} after.""",
        lambda: figure4("median_d_peak"),
    ),
    Sentence(
        ABLATIONS,
        """the EPE of the expectation is {} px without DAP, {} before it and {} after it; of the
        most probable displacement: {}, {}, {}.""",
        lambda: [*figure4("epe_soft_argmin"), *figure4("epe_winner_takes_all")],
    ),
    # README
    Sentence("README.md", "for {} minutes on one GPU", lambda: [sum(minutes())]),
    Sentence(
        "README.md",
        "on {} real pairs",
        lambda: [sum(map(int, find_table("README.md", "| | KITTI-15 stereo")[0][1:]))],
    ),
    Sentence("README.md", "it is {} to {} times as fast as the plain one", cpu_ratios),
    # model card
    Sentence(
        CARD,
        "| {} rendered pairs, {} minutes on one NVIDIA H200",
        lambda: [int(about()["pairs_total"]), sum(minutes())],
    ),
    Sentence(CARD, "**{} pairs in all.**", lambda: [int(about()["pairs_total"])]),
    Column(CARD, "| quality | AUSE |", 1, lambda: [calibration(q)[0] for q in QUALITIES]),
    Column(CARD, "| quality | AUSE |", 3, lambda: [calibration(q)[1] for q in QUALITIES]),
    Sentence(
        WEIGHTS,
        "the mean EPE is {} px at the start, {} after layers only, {} after two thirds solid "
        "and {} after solid only",
        held_out,
    ),
    Sentence(WEIGHTS, "solid only is worst: {} px, the others {} to {}", on_layers),
    Table(WEIGHTS, "| | KITTI-15 stereo | 2006 |", lambda: list(arms())),
    # speed
    Table("docs/measurements/speed.md", "| machine | torch |", first_rows),
    # exported files
    Sentence(
        "docs/measurements/throughput.md",
        """Over {} real pairs, the mean EPE of the .onnx is {} px, that of the estimator in float32
        {}; on one pair, it differs by at most {} px. The two flows are {} px apart on average, at
        most {} on a pair""",
        half_precision,
    ),
    Table(INT8, "| quality | fp32, ms |", lambda: list(int8_times())),
    Table(INT8, "| set | `normal`: EPE, fp32 |", lambda: list(int8_errors())),
    Sentence(
        INT8,
        "the distance is {} px for `normal` and {} px for `live`, if every set counts equally",
        int8_distances,
    ),
    # quality "live"
    Table(LIVE, "| | ms | times faster", lambda: list(live_rows())),
    Table(LIVE, "| | a pair, ms |", lambda: list(live_speeds())),
    Table(LIVE, "| radii | EPE, cut out |", lambda: list(live_parts())),
    # tracks
    Table(TRACKS, "| % | average Jaccard |", lambda: list(track_methods())),
    Sentence(
        TRACKS,
        "is {} times that of chained flow (95 % of the bootstraps over clips: {} to {}), the error "
        "in the last frame {} times ({} to {})",
        track_ratios,
    ),
    Sentence(
        TRACKS,
        "**{} frames a second**",
        lambda: [load("benchmarks/results/tracks-speed.json")["frames_per_second"]],
    ),
    Sentence(
        TRACKS,
        "{} GiB on the GPU and {} GiB in main memory, after {} frames and after {}",
        track_memory,
    ),
    # adaptation
    Table(
        ADAPTING,
        "| domain | `normal` |",
        lambda: list(imitation()),
    ),
    Table(
        ADAPTING,
        "| domain | without |",
        lambda: list(looks()),
    ),
    Table(ADAPTING, "| domain, scored at |", lambda: list(gains())),
    Sentence(
        ADAPTING,
        """errors on particle images rise by up to {} % if weights are adapted to something else,
        and by up to {} % all of the way""",
        lambda: [rise_elsewhere(share)[0] for share in ("0.5", "1.0")],
    ),
    Sentence(
        ADAPTING,
        "its error goes from {} to {} px, while the others fall by {} % on average",
        worst_thermal_clip,
    ),
    Table(ADAPTING, "| clip | warping error before |", lambda: list(real_clips())),
    # architecture
    Sentence(
        "docs/architecture.md",
        "| inference, ms | {} (accelerated, fp16: {}) | {} | | {} | |",
        host_milliseconds,
    ),
    Sentence(
        "docs/architecture.md",
        """VCN takes {} times the memory and {} times the time of `dicl`; in the paper, {} ({}
        and {} G) and {} ({} and {} ms).""",
        vcn_ratios,
    ),
]
QUALITIES = " of quality live", " of quality fast", "", " of quality best"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {name(claim)}")
def test_the_numbers_are_those_of_the_file(claim):
    claim.check()


def name(claim):
    return " ".join(getattr(claim, "text", getattr(claim, "header", "")).split())[:40]


# --- orders that the pages claim -----------------------------------------------------------------


def test_the_orders_of_the_metrics_are_as_the_page_says():
    def order(data, *variants):
        found = [scores("metrics", variant, data) for variant in variants]
        return all(list(row) == sorted(row) for row in zip(*found, strict=True))

    everywhere = "held-out", "sintel-clean", "sintel-final", "kitti15"
    others = METRICS[:4]
    assert all(order(data, "DICL", other) for data in everywhere for other in others)
    assert all(order("chairs:all", other, "DICL") for other in others)
    for data in ("held-out", "sintel-clean", "sintel-final"):
        assert order(data, "DICL", "MLP", "dot product")
    assert order("kitti15", "dot product", "MLP")
    assert order("held-out", "cosine", "MLP")
    for data in ("sintel-clean", "sintel-final", "kitti15"):
        assert all(order(data, other, "cosine") for other in METRICS)
        assert order(data, "DICL", "reduced DICL", "MLP")


@pytest.mark.parametrize("host", ["PWC-Net", "VCN"])
def test_the_matching_net_helps_by_more_than_the_seeds_differ(host):
    plain, learned = scores("hosts", host), scores("hosts", f"{host} + DICL")
    apart = max(abs(one - other) for one, other in (plain, learned))
    assert min(before - after for before, after in zip(plain, learned, strict=True)) > apart


def test_half_of_the_way_is_as_the_page_says():
    before = {domain: mean(errors) for domain, errors in load(ADAPTED)["before"].items()}
    left = {domain: adapted(domain, "0.5") / before[domain] for domain in before}
    assert {domain for domain, share in left.items() if share < 0.9} == {"fog", "night", "fluid"}
    assert max(left.values()) < 1
    assert all(rise_elsewhere(share)[1] == "fluid" for share in ("0.5", "1.0"))
    verdicts = {
        name: run["accepted"] for name, run in load(ADAPTED)["runs"].items() if "reasons" in run
    }
    refused = {name.split("/")[0] for name, accepted in verdicts.items() if not accepted}
    assert refused == {"endoscopic", "night"}


def test_dap_and_vcn_are_as_the_page_says():
    without, with_dap = (mean(scores("projection", n)) for n in ("DICL without DAP", "DICL"))
    assert abs(without - with_dap) < 0.05
    assert without > mean(scores("hosts", "VCN"))


def test_a_wrong_number_and_a_missing_sentence_are_found(monkeypatch):
    page = "A pair takes 2.37 ms.\n\n| machine | ms |\n|---|---|\n| H200 | 2.4 |\n"
    monkeypatch.setitem(globals(), "read_page", lambda _: page)
    Sentence("", "takes {} ms", lambda: [2.3749]).check()
    Table("", "| machine |", lambda: [[2.3749]]).check()
    Column("", "| machine |", 1, lambda: [2.3749]).check()
    for wrong in (
        Sentence("", "takes {} ms", lambda: [2.3751]),
        Sentence("", "needs {} ms", lambda: [2.37]),
        Table("", "| machine |", lambda: [[2.46]]),
        Table("", "| machine |", lambda: [[2.4], [2.4]]),
        Column("", "| machine |", 1, lambda: [2.46]),
    ):
        with pytest.raises(AssertionError):
            wrong.check()
    with pytest.raises(ValueError, match="unpack"):
        Table("", "| processor |", lambda: [[2.4]]).check()
