"""The settings of a training stage: data, loss, optimizer, schedule."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..errors import InputError, unknown_name
from .augment import AugmentConfig
from .hosts import HOST_RECORDS
from .loss import FROM_HOST, LossConfig
from .model import ModelConfig
from .quality import BEST
from .render import RenderConfig

OPTIMIZERS = ("adam", "adamw")
SCHEDULES = ("constant", "step", "cosine", "one-cycle")
BACKENDS = ("auto", "plain", "fused")
TRAINING_PRECISIONS = ("fp32", "tf32", "bf16")
START_WEIGHTS = ("best", "last")
FREEZABLE = ("features", "trunk", "context")


@dataclass(frozen=True)
class DataConfig:
    """One of the data sets that are trained on."""

    name: str
    """The name on the command line ("chairs", "kitti15:noc" …), or "rendered"."""
    repeat: int = 1
    """How many times each pair occurs in an epoch."""

    def __post_init__(self) -> None:
        _at_least("data.repeat", self.repeat, 1)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer: kind, learning rate, precision and the average of the weights."""

    kind: str = "adam"
    learning_rate: float = FROM_HOST
    """Default: that of the host on FlyingChairs; `TrainConfig` fills it in."""
    weight_decay: float = 0.0
    clip: float = 0.0
    """Largest norm of all gradients together; 0: no clipping."""
    accumulate: int = 1
    """Number of parts of a batch that are computed one after the other."""
    average: float = 0.0
    """Decay of the exponential moving average of the weights; 0: no average."""
    precision: str = "fp32"
    """fp32: true float32; tf32: GPUs that have TF32 use it in convolutions; bf16: bfloat16 in the
    convolutions, TF32 in those that autocast leaves in float32. Matrix products, softmax, flow and
    loss are always float32."""
    freeze_norm: bool = False
    """Keep the batch norm statistics fixed (small batches, fine-tuning)."""
    frozen: tuple[str, ...] | None = None
    """Parts that are taken from the weights to start from and not trained: "features" (the feature
    net), "trunk" (the feature net without its last layer at each level), "context" (the context
    nets). All other parts then start from random weights."""

    def __post_init__(self) -> None:
        if self.kind not in OPTIMIZERS:
            raise unknown_name("optimizer.kind", self.kind, OPTIMIZERS)
        if self.precision not in TRAINING_PRECISIONS:
            raise unknown_name("optimizer.precision", self.precision, TRAINING_PRECISIONS)
        for part in self.frozen or ():
            if part not in FREEZABLE:
                raise unknown_name("optimizer.frozen", part, FREEZABLE)
        _at_least("optimizer.accumulate", self.accumulate, 1)
        for key in ("weight_decay", "clip"):
            _at_least(f"optimizer.{key}", getattr(self, key), 0)
        if self.learning_rate is not FROM_HOST and not 0 < self.learning_rate < 1:
            raise InputError(f"optimizer.learning_rate must be in (0, 1), got {self.learning_rate}")
        if not 0 <= self.average < 1:
            raise InputError(f"optimizer.average must be in [0, 1), got {self.average}")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the run, as a factor of `optimizer.learning_rate`."""

    kind: str = "step"
    warmup: int = 0
    """Number of steps over which the rate rises from 0."""
    milestones: tuple[int, ...] = ()
    """step: the steps after which the rate is multiplied by `factor`."""
    factor: float = 0.5
    final: float = 0.0
    """cosine, one-cycle: the factor at the end."""
    hold: float = 0.0
    """cosine: the share of the run with a constant rate before it falls."""
    peak: float = 0.05
    """one-cycle: the share of the run at which the rate is highest."""

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise unknown_name("schedule.kind", self.kind, SCHEDULES)
        _at_least("schedule.warmup", self.warmup, 0)
        if list(self.milestones) != sorted(self.milestones):
            raise InputError(f"schedule.milestones must increase, got {self.milestones}")
        if not 0 < self.peak < 1:
            raise InputError(f"schedule.peak must be in (0, 1), got {self.peak}")
        if not 0 <= self.hold < 1:
            raise InputError(f"schedule.hold must be in [0, 1), got {self.hold}")


@dataclass(frozen=True)
class SecondPassConfig:
    """Steps that train the second pass of quality "best", which starts from an estimated flow."""

    every: int = 0
    """Every n-th round through `render.sizes` (without sizes: every n-th step) consists of such
    steps; 0: none."""
    enlarged: bool = False
    """The pass sees frames that were scaled down and up again, as when small frames are estimated;
    otherwise the frames as they are."""

    def __post_init__(self) -> None:
        _at_least("second_pass.every", self.every, 0)

    def check_for(self, model: ModelConfig) -> None:
        """Refuse a network without a second pass."""
        if self.every and not (model.begins_from_flow and BEST.start in model.strides):
            raise InputError(
                f"second_pass.every needs host 'dicl' and a level of stride {BEST.start} to start "
                f"at, got host {model.host!r} with the strides {', '.join(map(str, model.strides))}"
            )


@dataclass(frozen=True)
class TrainConfig:
    """All settings of one training stage, as a recipe gives them."""

    _POSITIVE: ClassVar[tuple[str, ...]] = ("steps", "batch", "save_every", "log_every")

    name: str
    data: tuple[DataConfig, ...]
    start: str = ""
    """The stage whose weights it starts from; empty: from random weights."""
    start_from: str = "best"
    """Which weights of that stage: best, those with the lowest validation error (without
    validation: the last), or last."""
    needs_weights: bool = False
    """There is no stage in `start`, but random weights are not intended: --init is required."""
    steps: int = 50_000
    batch: int = 64
    """Pairs per step, over all processes."""
    seed: int = 0
    backend: str = "auto"
    """plain; fused: accelerated with Triton kernels and CUDA graphs, on one GPU; or auto: fused
    where it can run, otherwise plain."""
    workers: int = 4
    """Loader processes per training process."""
    save_every: int = 1000
    log_every: int = 50
    picture_every: int = 1000
    validation: tuple[str, ...] = ()
    """The data sets on which the error is measured during training ("chairs:val" …)."""
    validate_every: int = 0
    """Steps between two validations; the last step is validated too. 0: never."""
    model: ModelConfig = field(default_factory=ModelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    render: RenderConfig = field(default_factory=RenderConfig)
    """The scenes of the data set "rendered"."""
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    second_pass: SecondPassConfig = field(default_factory=SecondPassConfig)

    def __post_init__(self) -> None:
        host = HOST_RECORDS[self.model.host]
        loss = self.loss.filled_in(host.loss)
        loss = loss if host.has_scores else replace(loss, matching=())
        object.__setattr__(self, "loss", loss)
        if self.optimizer.learning_rate is FROM_HOST:
            rate = host.rate_with(self.model.matcher)
            optimizer = replace(self.optimizer, learning_rate=rate)
            object.__setattr__(self, "optimizer", optimizer)
        self._check_settings()
        self._check_loss()
        self.second_pass.check_for(self.model)
        sizes = [("render.sizes", size) for size in self.render.sizes]
        for key, size in [("augment.crop", self.augment.crop), *sizes]:
            self._check_size(key, size)

    def _check_settings(self) -> None:
        for key in self._POSITIVE:
            _at_least(key, getattr(self, key), 1)
        for key in ("seed", "workers", "picture_every", "validate_every"):
            _at_least(key, getattr(self, key), 0)
        if self.start_from not in START_WEIGHTS:
            raise unknown_name("start_from", self.start_from, START_WEIGHTS)
        if self.backend not in BACKENDS:
            raise unknown_name("backend", self.backend, BACKENDS)
        if self.backend == "fused" and self.optimizer.accumulate > 1:
            raise InputError(
                "backend='fused' computes a batch at once; optimizer.accumulate must be 1"
            )
        if self.optimizer.frozen and not (self.start or self.needs_weights):
            raise InputError(
                "optimizer.frozen needs weights to start from; set needs_weights = true"
            )
        if self.validate_every and not self.validation:
            raise InputError('validate_every needs a data set: validation = ["chairs:val"]')
        if not self.data:
            raise InputError("data is empty; name at least one data set: [[data]] name = …")

    def _check_loss(self) -> None:
        if self.loss.refined and not self.model.context:
            raise InputError("loss.refined must be empty when model.context is false")
        for key in ("refined", "matched", "matching"):
            weights = getattr(self.loss, key)
            if weights and len(weights) != len(self.model.levels):
                raise InputError(
                    f"loss.{key} needs one weight per level ({len(self.model.levels)}), "
                    f"got {len(weights)}"
                )

    def _check_size(self, key: str, size: tuple[int, int]) -> None:
        multiple, deepest = self.model.pad_multiple, self.model.deepest_stride
        if any(side % multiple for side in size):
            why = f" (model.multiple is {self.model.multiple})" if multiple > deepest else ""
            raise InputError(f"{key} must be multiples of {multiple}{why}, got {size}")
        num_pairs = self.batch // self.optimizer.accumulate
        alone = num_pairs <= 1 and self.model.host_record.deeper_features
        if alone and size == (deepest, deepest) and not self.optimizer.freeze_norm:
            raise InputError(
                f"one pair of {deepest}x{deepest} is a single pixel of the coarsest map, and batch "
                f"norm needs two: use at least two pairs at a time, or a larger {key}"
            )


def _at_least(key: str, value: float, least: float) -> None:
    if value < least:
        raise InputError(f"{key} must be at least {least}, got {value}")
