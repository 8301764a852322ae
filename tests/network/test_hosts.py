"""PWC-Net and VCN take any matcher, and their parts equal straight-line computations."""

import copy
import json
from dataclasses import replace
from itertools import permutations, product
from math import log

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import HAS_BF16, SMALL

from dicl_flow.accelerated.cpu import AcceleratedDiclFlow
from dicl_flow.config import (
    HOST_RECORDS,
    HOSTS,
    MATCHERS,
    DataConfig,
    LevelConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from dicl_flow.data import FlowBatch
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import LevelFlow, build, count_parameters, has_matching_net, pwcnet
from dicl_flow.models.matching import ChannelwiseMatcher, CorrelationMatcher
from dicl_flow.models.pwcnet import Carried, DenseDecoder
from dicl_flow.models.vcn import (
    Hypotheses,
    PyramidPooling,
    SeparableConv,
    VolumeBlock,
    VolumeFilter,
    read_hypotheses,
    resize_volume,
    weigh,
)
from dicl_flow.ops import warp_strictly_inside
from dicl_flow.training import Processes, Trainer, read_recipe, recipe_names
from dicl_flow.training.loss import (
    multi_scale_loss,
    out_of_range_loss,
    summed_loss,
    training_loss,
)
from dicl_flow.training.recipe import freeze_norms, start_from
from dicl_flow.weights import Weights, encode_weights, load_model, read_weights

pytestmark = pytest.mark.heavy

GRID = list(product(HOSTS, (None, *MATCHERS)))
BOTH = ("pwcnet", "vcn")
ALONE = Processes(torch.device("cpu"))


@pytest.fixture(autouse=True)
def small_clouds(monkeypatch):
    """PWC-Net is built with a look at noise: less will do, but where its start is tested."""
    monkeypatch.setattr(pwcnet._clouds, "__defaults__", (2, 128))


def small(host, matcher=None, **changes):
    return replace(SMALL.with_host(host), matcher=matcher, **changes)


def stage(model):
    kind = {"dicl": "averaged", "pwcnet": "multi-scale", "vcn": "summed"}[model.host]
    flows = {"refined": (0.5, 1.0) if model.context else (), "matched": (0.4, 0.8)}
    return TrainConfig(
        "test", (DataConfig("chairs"),), model=model, loss=LossConfig(kind=kind, **flows)
    )


def random_batch(pairs=2, height=32, width=48):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, pairs, 3, height, width, generator=generator)
    flow = 8 * torch.randn(pairs, 2, height, width, generator=generator)
    valid = torch.rand(pairs, height, width, generator=generator) > 0.3
    return FlowBatch(*images, flow, valid)


@pytest.mark.parametrize(
    ("host", "parameters", "at_inference"),
    [("dicl", 11_226_036, 11_226_036), ("pwcnet", 9_374_274, 9_374_274),
     ("vcn", 10_310_781, 6_227_224)],
)  # fmt: skip
def test_parameters_are_those_of_the_papers(host, parameters, at_inference):
    with torch.device("meta"):  # without values
        model = build(ModelConfig(host=host))
    assert count_parameters(model) == parameters
    assert count_parameters(model, inference=True) == at_inference


@pytest.mark.parametrize(("host", "channels"), [("pwcnet", 196), ("vcn", 128)])
def test_the_learned_matching_net_takes_the_metrics_place_and_nothing_else_changes(host, channels):
    with torch.device("meta"):  # without values
        nets = [build(ModelConfig(host=host, matcher=matcher)) for matcher in (None, "dicl")]
    own, learned = (net.state_dict() for net in nets)
    assert learned["levels.64.matcher.net.0.conv.weight"].shape == (96, 2 * channels, 3, 3)
    assert not any(".matcher." in key for key in own)
    rest = {key: value.shape for key, value in learned.items() if ".matcher." not in key}
    differing = {key for key in own.keys() | rest.keys() if own[key].shape != rest.get(key)}
    projections = {f"levels.{stride}.filter.project.conv.weight" for stride in (64, 32, 16, 8, 4)}
    assert differing == (projections if host == "vcn" else set())  # K = 1 there
    assert all(rest[key][1] == 1 for key in differing)


@pytest.mark.parametrize(("host", "matcher"), GRID)
def test_every_host_takes_every_matcher(host, matcher, tmp_path):
    """Forward, backward into every parameter, weights out and in again."""
    torch.manual_seed(0)
    config = small(host, matcher)
    model = build(config).train()
    freeze_norms(model)  # else a bias before a norm has no gradient, by construction
    batch = random_batch()
    levels = model(batch.image1, batch.image2)
    assert [tuple(level.refined.shape) for level in levels] == [(2, 2, 4, 6), (2, 2, 8, 12)]
    assert all(level.entropy.min() >= 0 and level.entropy.max() <= 1.0001 for level in levels)
    training_loss(levels, batch, stage(config), ALONE.average).backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not idle

    path = tmp_path / "w.safetensors"
    path.write_bytes(encode_weights(Weights(config, model.state_dict())))
    again = load_model(read_weights(path))
    assert again.config == config
    with torch.no_grad():
        expected, found = (m.eval()(batch.image1, batch.image2) for m in (model, again))
    assert torch.equal(found[-1].refined, expected[-1].refined)
    assert all(level.out_of_range is None for level in found)


@pytest.mark.parametrize("host", BOTH)
@pytest.mark.parametrize("strides", [(64, 32, 16, 8, 4), (16, 8), (4,)])
def test_levels_come_from_the_config(host, strides):
    config = ModelConfig(host=host, levels=tuple(LevelConfig(s, 1, ((4, 1),)) for s in strides))
    with torch.no_grad():
        flows = build(config).eval()(*torch.rand(2, 1, 3, 64, 128))
    assert [flow.refined.shape[-1] for flow in flows] == [128 // s for s in strides]


@pytest.mark.parametrize("host", BOTH)
@pytest.mark.parametrize("matcher", [None, "dicl"])
def test_every_precision_runs_and_flow_is_at_least_float32(host, matcher):
    torch.manual_seed(0)
    levels = (LevelConfig(4, 1, ((8, 1),)),)  # one, tiny: bfloat16 may be emulated
    model = build(small(host, matcher, levels=levels)).train()
    images = torch.rand(2, 2, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = model(*images)
    full = model.double()(*images.double())
    assert {part.dtype for level in reduced for part in level if part is not None} == {torch.float}
    assert {part.dtype for level in full for part in level if part is not None} == {torch.double}


@pytest.mark.parametrize("host", BOTH)
def test_without_context_nets_the_matched_flow_stands(host):
    model = build(small(host, context=False)).train()
    levels = model(*torch.rand(2, 2, 3, 32, 32))
    assert all(torch.equal(level.matched, level.refined) for level in levels)
    assert all(level.out_of_range is None for level in levels)


def test_context_nets_can_join_later(tmp_path):
    config = small("vcn", context=False)
    path = tmp_path / "w.safetensors"
    path.write_bytes(encode_weights(Weights(config, build(config).state_dict())))
    model = build(small("vcn"))
    assert start_from(model, path) == config


# ---------------------------------------------------------------- config


def of_host(host, loss=None, **model):
    data, model = (DataConfig("chairs"),), ModelConfig(host=host, **model)
    return TrainConfig("t", data, model=model, loss=loss or LossConfig())


def test_defaults_come_from_the_record_of_the_host():
    for host, record in HOST_RECORDS.items():
        config = of_host(host)
        assert config.model.levels == record.levels
        assert config.model.projection is (host == "dicl")
        assert config.loss == record.loss
        assert ModelConfig.from_json(config.model.to_json()) == config.model
    assert of_host("pwcnet").loss == LossConfig((0.32, 0.08, 0.02, 0.01, 0.005), (), "multi-scale")


def test_a_given_value_is_kept_also_where_it_is_the_default_of_another_host():
    for host, other in permutations(HOSTS, 2):
        given = HOST_RECORDS[other]
        config = of_host(host, given.loss, levels=given.levels)
        assert config.model.levels == given.levels
        assert config.loss == given.loss
        assert ModelConfig.from_json(config.model.to_json()) == config.model
    averaged = replace(HOST_RECORDS["dicl"].loss, exponent=0.5)
    assert of_host("pwcnet", averaged).loss == averaged


def test_a_change_of_host_changes_its_defaults_and_nothing_else():
    for host, other in permutations(HOSTS, 2):
        assert ModelConfig(host=host).with_host(other) == ModelConfig(host=other)
    assert SMALL.with_host("vcn").levels == SMALL.levels


def test_a_stage_has_the_learning_rate_of_its_host_unless_one_is_set():
    def rate(host, *changes, recipe="chairs-1"):
        return read_recipe(recipe, [f"model.host={host}", *changes]).optimizer.learning_rate

    assert [rate(host) for host in ("dicl", "pwcnet", "vcn")] == [1e-3, 1e-4, 1e-3]
    assert rate("pwcnet", "model.matcher=dicl") == 5e-5
    assert rate("vcn", "model.matcher=dicl") == 1e-3
    assert rate("pwcnet", "optimizer.learning_rate=1e-3") == 1e-3  # also if it is DICL's own
    assert rate("pwcnet", recipe="ablation") == rate("dicl", recipe="ablation") == 6e-4


def test_pad_multiples():
    multiples = {(h, m): ModelConfig(host=h, matcher=m).pad_multiple for h, m in GRID}
    assert {v for (h, _), v in multiples.items() if h == "dicl"} == {128}
    assert multiples["pwcnet", None] == multiples["vcn", "mlp"] == 64
    assert multiples["pwcnet", "dicl"] == multiples["vcn", "dicl"] == 128
    fed_larger = ModelConfig(host="vcn", multiple=96)
    assert (fed_larger.deepest_stride, fed_larger.pad_multiple) == (64, 192)
    images = torch.rand(2, 1, 3, 64, 64)  # what it is fed with is not what it can take
    assert build(fed_larger).eval()(*images)[-1].refined.shape == (1, 2, 16, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": "pwc-net"}, "did you mean 'pwcnet'"),
        ({"host": "vcn", "feature_channels": 16}, "fixed widths"),
        ({"host": "vcn", "levels": (LevelConfig(4), LevelConfig(2))}, "no features at stride 2"),
        ({"host": "vcn", "projection": True}, "no projection"),
    ],
)
def test_what_a_host_cannot_be_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ModelConfig(**changes)


def test_an_unknown_loss_is_refused():
    with pytest.raises(InputError, match="did you mean 'summed'"):
        LossConfig(kind="sumed")


@pytest.mark.parametrize("host", BOTH)
def test_the_recipe_of_a_quality_refuses_other_hosts(host):
    with pytest.raises(InputError, match="searches less far"):
        read_recipe("live", [f"model.host={host}"])


def test_another_kind_of_loss_needs_its_weights():
    with pytest.raises(InputError, match="is not the host's own"):
        read_recipe("rendered-0", ["model.host=pwcnet", "loss.kind=averaged"])
    weights = ["loss.refined=[1, 1, 1, 1, 1]", "loss.matched=[]"]
    config = read_recipe("rendered-0", ["model.host=pwcnet", "loss.kind=averaged", *weights])
    assert config.loss == LossConfig((1,) * 5, (), "averaged")


@pytest.mark.parametrize(("host", "matcher"), list(product(BOTH, ("", "dicl"))))
@pytest.mark.parametrize("recipe", sorted({*recipe_names()} - {"live"}))
def test_every_recipe_takes_every_host(recipe, host, matcher):
    changes = [f"model.host={host}", *([f"model.matcher={matcher}"] if matcher else [])]
    config = read_recipe(recipe, changes)
    assert config.model.levels == HOST_RECORDS[host].levels
    assert not config.model.projection
    assert config.loss.kind != "averaged" or recipe == "chairs-0"  # which gives its own weights


@pytest.mark.parametrize("host", ["pwcnet", pytest.param("vcn", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("small_scenes")
def test_two_steps_of_a_recipe_from_the_command_line(run, host, tmp_path):
    """As rendered-0, with an average of the weights; then used as any other weights."""
    precision = "bf16" if HAS_BF16 else "fp32"
    settings = [f"model.host={host}", "backend=plain", "augment.crop=[64,64]", "batch=2",
                "steps=2", "save_every=2", f"optimizer.precision={precision}"]  # fmt: skip
    changes = [word for setting in settings for word in ("--set", setting)]
    data = ("--data", "rendered=procedural", "--device", "cpu", "--quiet")
    code, _, err = run("train", "rendered-0", *changes, *data, "-o", tmp_path / "run")
    assert code == 0, err
    weights = tmp_path / "run" / "weights.safetensors"
    code, out, _ = run("info", weights, "--json")
    assert code == 0
    assert f'"host": "{host}"' in out
    assert "6227224" in out if host == "vcn" else "9374274" in out
    estimator = FlowEstimator(load_model(read_weights(weights)), "cpu")
    image = np.zeros((50, 70, 3), np.uint8)
    assert estimator(image, image).flow.shape == (50, 70, 2)


def test_training_changes_every_parameter_of_vcn():
    """The heads that only training has are trained, too."""
    batch = random_batch()
    frozen = OptimizerConfig(freeze_norm=True)  # else a bias before a norm has no gradient
    config = replace(stage(small("vcn")), batch=2, steps=1, optimizer=frozen)
    trainer = Trainer(config, ALONE)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    values = trainer.train_step(iter([batch]), 0.0)
    assert values["loss"] > 0
    still = [n for n, p in trainer.model.named_parameters() if torch.equal(p, before[n])]
    assert not still


@pytest.mark.parametrize("host", BOTH)
def test_the_fast_path_is_refused_not_faked(host):
    model = build(small(host))
    assert not has_matching_net(model.config)
    assert FlowEstimator(model, "cpu").backend == "plain"
    with pytest.raises(InputError, match=f"'{host}' with matcher None has no accelerated version"):
        FlowEstimator(model, "cpu", backend="fast")


@pytest.mark.parametrize("matcher", [None, *MATCHERS])
def test_what_is_supported_is_what_can_be_built(matcher):
    model = build(small("dicl", matcher))
    assert has_matching_net(model.config) == (matcher in (None, "dicl"))
    if has_matching_net(model.config):
        AcceleratedDiclFlow(model)
    else:
        with pytest.raises(InputError, match=f"matcher '{matcher}' has no accelerated version"):
            AcceleratedDiclFlow(model)


def test_bench_times_a_host(run):
    options = ("--size", "64x64", "--batch", "1", "--repeats", "1", "--device", "cpu", "--json")
    code, out, _ = run("bench", "--host", "vcn", *options)
    assert code == 0
    report = json.loads(out)
    assert (report["host"], report["results"][0]["backend"]) == ("vcn", "plain")
    assert report["written"] == []
    assert run("bench", "--host", "vcn", "-w", "rendered", *options)[0] == 2


# ---------------------------------------------------------------- PWC-Net


def test_correlation_is_the_mean_of_products():
    features1, features2 = torch.randn(2, 1, 6, 5, 7)
    volume = CorrelationMatcher(6, 4)(features1, features2)
    assert volume.shape == (1, 1, 9, 9, 5, 7)
    for (dx, dy), (x, y) in product([(0, 0), (-2, 1), (3, -1)], [(3, 2), (5, 4)]):
        inside = 0 <= x + dx < 7 and 0 <= y + dy < 5
        there = features2[0, :, y + dy, x + dx] if inside else torch.zeros(6)
        expected = (features1[0, :, y, x] * there).mean()
        torch.testing.assert_close(volume[0, 0, dx + 4, dy + 4, y, x], expected)


def test_dense_decoder_sees_all_that_came_before():
    decoder = DenseDecoder(10)
    assert [layer[0].in_channels for layer in decoder.layers] == [10, 138, 266, 362, 426]
    x = torch.randn(1, 10, 4, 4)
    hidden = decoder(x)
    assert hidden.shape[1] == decoder.out_channels == 458
    torch.testing.assert_close(hidden[:, -10:], x)
    torch.testing.assert_close(hidden[:, :32], decoder.layers[-1](hidden[:, 32:]))


@pytest.mark.parametrize(("stride", "scale"), [(32, 0.625), (16, 1.25), (8, 2.5), (4, 5.0)])
def test_pwcnet_predicts_in_units_of_twenty_pixels(stride, scale, monkeypatch):
    level = build(ModelConfig(host="pwcnet")).levels[str(stride)]
    flows = []
    monkeypatch.setattr(pwcnet, "warp", lambda features, flow: flows.append(flow) or features)
    torch.nn.init.zeros_(level.flow.weight)
    torch.nn.init.ones_(level.flow.bias)
    features = torch.randn(2, 1, pwcnet.WIDTHS[stride], 4, 4)
    coarse = Carried(torch.full((1, 2, 4, 4), 3.0), torch.zeros(1, 2, 4, 4))
    found, _ = level(*features, coarse)
    torch.testing.assert_close(flows[0], torch.full((1, 2, 4, 4), 3 * scale))
    torch.testing.assert_close(found.matched, torch.full((1, 2, 4, 4), scale))  # 20 px


@pytest.mark.parametrize("matcher", [None, "cosine"])
def test_pwcnet_starts_with_features_that_vary_and_little_flow(matcher, monkeypatch):
    """Else training shrinks its features to nothing before they have found a match."""
    monkeypatch.undo()  # small_clouds
    torch.manual_seed(0)
    model = build(ModelConfig(host="pwcnet", matcher=matcher))
    images = F.interpolate(torch.rand(8, 3, 16, 16), scale_factor=16, mode="bilinear") * 2 - 1
    with torch.no_grad():
        for features in model.features(images):
            assert 1 < features.std((2, 3)).mean() < 4  # 3, less what LeakyReLU takes
        assert all(level.refined.abs().mean() < 1 for level in model(images[:1], images[1:2]))


def test_pwcnet_with_a_normed_matcher_starts_by_kaimings_rule_alone():
    torch.manual_seed(0)
    first, *_ = build(ModelConfig(host="pwcnet", matcher="dicl")).features.parameters()
    assert first.std().item() == pytest.approx((2 / first[0].numel()) ** 0.5, rel=0.2)


def test_pwcnet_refines_at_stride_four_only():
    with torch.device("meta"):  # without values
        levels = build(ModelConfig(host="pwcnet")).levels
    assert [level.context is not None for level in levels.values()] == [False] * 4 + [True]


def test_multi_scale_loss_is_the_sum_over_pixels():
    generator = torch.Generator().manual_seed(0)
    truth, valid = torch.randn(2, 2, 4, 8, generator=generator), torch.ones(2, 4, 8).bool()
    valid[0, :2, :2] = False  # a whole cell
    valid[1, 0, 3] = False
    flow = torch.randn(2, 2, 2, 4, generator=generator)
    level = LevelFlow(flow, flow, flow)
    expected = 0.0
    for pair, row, column in product(range(2), range(2), range(4)):
        window = (pair, slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2))
        if valid[window].any():
            cell = truth.permute(0, 2, 3, 1)[window][valid[window]].mean(0)
            expected += 0.3 * (2 * flow[pair, :, row, column] - cell).norm().item() / 20 / 2
    loss = multi_scale_loss([level], truth, valid, LossConfig((0.3,), (), "multi-scale"))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------- VCN


def test_channelwise_product_keeps_the_channels():
    features1, features2 = torch.randn(2, 2, 6, 5, 7)
    matcher = ChannelwiseMatcher(6, 4)
    volume = matcher(features1, features2)
    assert volume.shape == (2, matcher.out_channels, 9, 9, 5, 7)
    mean = CorrelationMatcher(6, 4)(features1, features2)
    torch.testing.assert_close(volume.mean(1, keepdim=True), mean)


def test_hypotheses_are_read_around_the_peak():
    """A naive loop over pixels: the softmax of the 7x7 scores around the best one."""
    scores = 3 * torch.randn(1, 2, 9, 9, 3, 4, dtype=torch.double)
    found = read_hypotheses(scores)
    for n, y, x in product(range(2), range(3), range(4)):
        table = scores[0, n, :, :, y, x].numpy()
        u, v = np.unravel_index(table.argmax(), table.shape)
        cells = [(i, j) for i, j in product(range(9), range(9)) if max(abs(i - u), abs(j - v)) <= 3]
        weights = np.exp([table[cell] for cell in cells])
        weights /= weights.sum()
        expected = weights @ (np.array(cells) - 4)
        np.testing.assert_allclose(found.flows[0, n, :, y, x], expected, atol=1e-12)
        share = np.exp(table) / np.exp(table).sum()
        entropies = [-(p * np.log(p)).sum() for p in (weights, share)]
        expected = np.array(entropies) / [log(49), log(81)]
        np.testing.assert_allclose(found.entropies[0, n, :, y, x], expected, atol=1e-12)


def test_a_second_peak_far_away_does_not_pull():
    scores = torch.zeros(1, 1, 9, 9, 1, 1)
    scores[0, 0, 0, 0], scores[0, 0, 8, 8] = 50.0, 49.0
    torch.testing.assert_close(read_hypotheses(scores).flows[0, 0, :, 0, 0], torch.full((2,), -4.0))


def test_hypotheses_are_weighed_for_x_and_y_on_their_own():
    flows, votes = torch.randn(2, 3, 2, 4, 5), torch.randn(2, 6, 4, 5)
    found = weigh(flows, votes)
    for axis in range(2):
        weights = votes[:, axis::2].softmax(1)
        torch.testing.assert_close(found[:, axis], (flows[:, :, axis] * weights).sum(1))


def test_coarser_hypotheses_come_as_facts_and_pixels_are_areas():
    flows = torch.randn(1, 2, 2, 3, 4, requires_grad=True)
    finer = Hypotheses(flows, flows).upsample((6, 8))
    assert not finer.flows.requires_grad
    expected = F.interpolate(flows[0], (6, 8), mode="bilinear", align_corners=False)
    torch.testing.assert_close(finer.flows[0], 2 * expected.detach())
    torch.testing.assert_close(finer.entropies[0], expected.detach())
    model = build(small("vcn"))
    torch.testing.assert_close(model.upsample(flows[:, 0], (6, 8)), 2 * expected[:1])


@pytest.mark.parametrize(("stride", "space_stride"), [(1, 1), (2, 1), (2, 2)])
def test_separable_convolution_equals_a_dense_one(stride, space_stride):
    """Where the ReLU between the halves is idle: a 4-D kernel that is an outer product."""
    torch.manual_seed(0)
    conv = SeparableConv(2, 3, stride, space_stride, norm=False).double()
    for parameter in conv.parameters():
        parameter.data.uniform_(0.1, 1)
    volume = torch.rand(1, 2, 5, 5, 4, 6, dtype=torch.double)
    torch.nn.init.zeros_(conv.over_displacements.bias)
    first, second = conv.over_displacements.weight[..., 0], conv.over_space.weight[:, :, 0]
    kernel = torch.einsum("mcuv,omhw->ocuvhw", first, second)
    windows = F.pad(volume, [1] * 8)
    for axis, step in zip((2, 3, 4, 5), (stride, stride, space_stride, space_stride), strict=True):
        windows = windows.unfold(axis, 3, step)
    dense = torch.einsum("bcUVHWuvhw,ocuvhw->boUVHW", windows, kernel)
    expected = dense + conv.over_space.bias[:, None, None, None, None]
    torch.testing.assert_close(conv(volume), expected)


def test_separable_convolution_norms_each_half_over_the_whole_volume():
    torch.manual_seed(0)
    conv = SeparableConv(3).double()
    volume = torch.randn(2, 3, 5, 5, 4, 6, dtype=torch.double)

    def normed(x):  # (B, C, …)
        mean = x.transpose(0, 1).flatten(1).mean(1)[:, None, None, None, None]
        deviation = x.transpose(0, 1).flatten(1).var(1, correction=0).add(1e-5).sqrt()
        return (x - mean) / deviation[:, None, None, None, None]

    columns = volume.permute(0, 4, 5, 1, 2, 3).flatten(0, 2)
    x = F.conv2d(columns, conv.over_displacements.weight[..., 0], padding=1)
    x = normed(x.unflatten(0, (2, 4, 6)).permute(0, 3, 4, 5, 1, 2)).relu()
    planes = x.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    x = F.conv2d(planes, conv.over_space.weight[:, :, 0], padding=1)
    expected = normed(x.unflatten(0, (2, 5, 5)).permute(0, 3, 1, 2, 4, 5))
    torch.testing.assert_close(conv(volume), expected)


@pytest.mark.parametrize(("space", "shape"), [(False, (5, 5, 7, 6)), (True, (5, 5, 4, 3))])
def test_a_step_down_halves_displacements_and_space_where_told(space, shape):
    assert VolumeBlock(2, 2, space=space)(torch.randn(1, 2, 9, 9, 7, 6)).shape[2:] == shape


@pytest.mark.parametrize(("channels", "space"), [(1, True), (3, False)])
def test_fused_filters_keep_volumes_channels_last(channels, space):
    """The same values and gradients; every norm sees its channels side by side in memory."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        VolumeFilter(channels, 4, space=space), SeparableConv(4, norm=False)
    )
    from dicl_flow.accelerated.training import accelerate

    fused = accelerate(copy.deepcopy(plain))
    orders = []
    for module in fused.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_hook(lambda _, inputs, __: orders.append(inputs[0].stride(1)))
    volume = torch.randn(2, channels, 5, 5, 4, 6)
    outcomes = [net(volume) for net in (plain, fused)]
    for outcome in outcomes:
        outcome.square().sum().backward()
    torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-4)
    for found, expected in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-3)
    assert set(orders) == {1}


def test_volumes_are_enlarged_axis_by_axis():
    volume = torch.randn(1, 1, 3, 3, 2, 4)
    found = resize_volume(volume, torch.Size((5, 5, 4, 7)))
    over_space = F.interpolate(volume[0, 0].flatten(0, 1)[None], (4, 7), mode="bilinear")
    columns = over_space[0].unflatten(0, (3, 3)).permute(2, 3, 0, 1).flatten(0, 1)[None]
    expected = F.interpolate(columns, (5, 5), mode="bilinear")[0].unflatten(0, (4, 7))
    torch.testing.assert_close(found[0, 0], expected.permute(2, 3, 0, 1))


def test_warp_is_zero_on_the_border_and_beyond():
    features = torch.rand(1, 1, 3, 5) + 1
    kept = warp_strictly_inside(features, torch.zeros(1, 2, 3, 5))
    inner = torch.zeros(3, 5)
    inner[1:-1, 1:-1] = 1  # |grid| is exactly 1 on the border
    torch.testing.assert_close(kept[0, 0], features[0, 0] * inner)
    flow = torch.zeros(1, 2, 3, 5)
    flow[:, 0] = 0.5
    found = warp_strictly_inside(features, flow)[0, 0]
    assert found[1, 3] == pytest.approx(features[0, 0, 1, 3:5].mean().item())
    assert found[1, 0] == pytest.approx(features[0, 0, 1, 0:2].mean().item())
    assert found[1, 4] == 0


def test_pooling_goes_from_many_cells_to_one():
    pooling = PyramidPooling(4)
    x = torch.randn(2, 4, 6, 9)
    sizes = []
    for path in pooling.paths:
        path.register_forward_hook(lambda _, inputs, output: sizes.append(inputs[0].shape[-2:]))
    assert pooling(x).shape == x.shape
    assert sizes == [(3, 3), (2, 2), (1, 1)]
    assert pooling(x[..., :1, :1]).shape == (2, 4, 1, 1)


def test_norms_of_vcn_see_both_images():
    model = build(small("vcn")).train()
    image1, image2 = torch.rand(2, 2, 3, 32, 32)
    model(image1, image2)
    assert model.features.stem[0][1].num_batches_tracked == 1


def test_summed_loss():
    truth, valid = torch.randn(1, 2, 4, 4), torch.ones(1, 4, 4).bool()
    valid[0, 0] = False
    coarse, fine = torch.randn(1, 2, 1, 1), torch.randn(1, 2, 2, 2)
    levels = [LevelFlow(f, f, f) for f in (coarse, fine)]
    expected = 0.0
    for weight, flow in ((0.25, coarse), (1.0, fine)):
        full = F.interpolate(flow, (4, 4), mode="bilinear") * (4 / flow.shape[-1])
        expected += weight * (full - truth).norm(dim=1)[valid].mean()
    config = LossConfig((0.25, 1.0), (), "summed")
    loss = summed_loss(levels, truth, valid, config, valid.sum())
    torch.testing.assert_close(loss, expected)


def test_out_of_range_loss_is_a_balanced_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    batch = random_batch(2, 8, 8)
    batch.image1[:], batch.image2[:] = 0.5, 0.5
    batch.image1[0, :, 2, 3] = 0.9  # another colour: hidden
    logits = torch.randn(2, 2, 1, 1, 1, generator=generator)
    coarse = torch.randn(2, 2, 1, 1, generator=generator)
    levels = [
        LevelFlow(coarse, coarse, coarse, logits[0]),
        LevelFlow(coarse, coarse, coarse, logits[1].expand(2, 1, 2, 2)),
    ]
    configs = (LevelConfig(8, 1), LevelConfig(4, 1))
    positions = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="xy"))
    target = positions + batch.flow
    inside = ((target >= 0) & (target <= 7)).all(1)  # beyond, the warp leaves black
    changed = ~inside
    changed[0, 2, 3] = True
    expected = 0.0
    for index, limit in enumerate((8, 4)):
        rest = batch.flow - (8 * coarse if index else 0)
        outside = (rest.abs() > limit).any(1) | changed
        share = outside[batch.valid].double().mean()
        p = logits[index].sigmoid()[:, 0].expand(2, 8, 8)
        terms = torch.where(outside, -(1 - share) * p.log(), -share * (1 - p).log())
        expected += terms[batch.valid].mean().item()
    loss = out_of_range_loss(levels, batch, configs, ALONE.average)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
