"""The settings of a training stage: data, augmentation, loss, optimizer, schedule."""

from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError, check_name
from .model import BEST, FROM_HOST, NORMAL, LossConfig, ModelConfig, Radii, find_quality
from .render import RenderConfig
from .strict import check_ranges


@dataclass(frozen=True)
class AugmentConfig:
    """The augmentation of training pairs; the default is that of the paper for FlyingChairs.

    Pairs with sparse ground truth always have the same colour change in both frames, no stretch
    and no vertical flip.
    """

    crop: tuple[int, int] = (256, 384)
    """(height, width) of the result; a smaller image is scaled up first."""
    crop_margin: int = 0
    """How far outside the frame, in px, positions are drawn before they are moved inside, so that
    crops at the border are more frequent. The authors' code has 20 for dense ground truth."""
    color: float = 1.0
    """Probability of a change of colour."""
    brightness: float = 0.4
    """Largest relative change; contrast and saturation likewise."""
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.5 / 3.14
    """Largest change, in turns of the colour wheel."""
    asymmetric_color: float = 0.2
    """Probability that the two frames change differently."""
    noise: float = 0.0
    """Largest standard deviation of pixel noise; 1 is the distance from black to white."""
    blur: float = 0.0
    """Largest standard deviation, in px, of a Gaussian blur of both frames, of pairs on disk."""
    eraser: float = 0.5
    """Probability that rectangles of frame 2 are filled with its mean colour."""
    eraser_count: tuple[int, int] = (1, 2)
    """Smallest and largest number of rectangles."""
    eraser_size: tuple[int, int] = (50, 100)
    """Shortest and longest side of a rectangle, in px before scaling."""
    spatial: float = 0.8
    """Probability of a change of size."""
    min_scale: float = -0.2
    """Smallest scale factor, as a power of 2: -1 halves, 1 doubles; `max_scale` likewise."""
    max_scale: float = 1.0
    stretch: float = 0.2
    """Largest additional factor, drawn for each axis separately, as a power of 2."""
    stretch_probability: float = 0.8
    horizontal_flip: float = 0.5
    """Probability that left and right are swapped."""
    vertical_flip: float = 0.1
    """Probability that top and bottom are swapped."""
    motion_shift: float = 0.0
    """Largest additional motion of frame 2 relative to frame 1, in px of the crop per axis."""
    motion_rotation: float = 0.0
    """Largest additional rotation of frame 2 about the centre of the crop, in degrees."""
    motion_scale: float = 0.0
    """Largest additional scaling of frame 2 about the centre of the crop, as a power of 2."""

    def __post_init__(self) -> None:
        if min(self.crop) < 1:
            raise InputError(f"crop must be (height, width) of at least 1, got {self.crop}")
        check_ranges(self, _AUGMENT_RANGES)
        if self.min_scale > self.max_scale:
            scales = f"{self.min_scale} and {self.max_scale}"
            raise InputError(f"min_scale must not be above max_scale, got {scales}")
        for key in ("eraser_count", "eraser_size"):
            low, high = getattr(self, key)
            if not 1 <= low <= high:
                raise InputError(f"{key} must be a range from at least 1, got {[low, high]}")

    @classmethod
    def crop_only(cls, crop: tuple[int, int]) -> "AugmentConfig":
        """Random cropping and nothing else, as in the first phase of the paper."""
        return cls(crop, color=0.0, eraser=0.0, spatial=0.0, horizontal_flip=0.0, vertical_flip=0.0)


_AUGMENT_RANGES = {  # of what is not in [0, 1]
    **dict.fromkeys(("crop", "eraser_count", "eraser_size")),
    "hue": (0, 0.5),
    "blur": (0, 20),
    **dict.fromkeys(("min_scale", "max_scale"), (-4, 4)),
    **dict.fromkeys(("stretch", "motion_scale"), (0, 2)),
    **dict.fromkeys(("crop_margin", "motion_shift"), (0, 1000)),
    "motion_rotation": (0, 180),
}
BACKENDS = ("auto", "plain", "fused")
TRAINING_PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class DataConfig:
    """One of the data sets that are trained on."""

    name: str
    """The name on the command line ("chairs", "kitti15:noc" …), or "rendered"."""
    repeat: int = 1
    """How many times each pair occurs in an epoch."""

    def __post_init__(self) -> None:
        _check_at_least(1, self, "data.", "repeat")


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
    """Of convolutions: fp32, true float32; tf32, on GPUs that have it; bf16, TF32 where autocast
    leaves float32. Matrix products, softmax, flow and loss are always float32."""
    freeze_norm: bool = False
    """Keep the batch norm statistics fixed (small batches, fine-tuning)."""
    frozen: tuple[str, ...] | None = None
    """Parts that keep the initial weights, while all others start from random ones: "features" (the
    feature net), "trunk" (the same without its last layer at each level), "context" (the nets)."""

    def __post_init__(self) -> None:
        check_name("optimizer.kind", self.kind, ("adam", "adamw"))
        check_name("optimizer.precision", self.precision, TRAINING_PRECISIONS)
        for part in self.frozen or ():
            check_name("optimizer.frozen", part, ("features", "trunk", "context"))
        _check_at_least(1, self, "optimizer.", "accumulate")
        _check_at_least(0, self, "optimizer.", "weight_decay", "clip")
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
        check_name("schedule.kind", self.kind, ("constant", "step", "cosine", "one-cycle"))
        _check_at_least(0, self, "schedule.", "warmup")
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
    """Every n-th round through `render.sizes` (without sizes: every n-th step); 0: none."""
    enlarged: bool = False
    """The pass sees frames that were scaled down and up again, as it does of small frames."""

    def __post_init__(self) -> None:
        _check_at_least(0, self, "second_pass.", "every")


@dataclass(frozen=True)
class TrainConfig:
    """All settings of one training stage, as a recipe gives them."""

    name: str
    data: tuple[DataConfig, ...]
    start: str = ""
    """The stage whose weights it starts from; empty: from random weights."""
    start_from: str = "best"
    """Which weights of that stage: best (those of the lowest validation error, if any), or last."""
    needs_weights: bool = False
    """There is no stage in `start`, but random weights are not intended: --init is required."""
    quality: str = NORMAL
    """One with smaller search radii, as "live": only its own projections and context nets are
    trained; the result is the initial weights with them."""
    steps: int = 50_000
    batch: int = 64
    """Pairs per step, over all processes."""
    seed: int = 0
    backend: str = "auto"
    """plain; fused: Triton kernels and CUDA graphs on one GPU; auto: fused where it can run."""
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
        host = self.model.host_record
        loss = self.loss.filled_in(host.loss)
        loss = loss if host.has_scores else replace(loss, matching=())
        object.__setattr__(self, "loss", loss)
        if self.optimizer.learning_rate is FROM_HOST:
            with_dicl = host.learning_rate_with_dicl if self.model.matcher == "dicl" else None
            optimizer = replace(self.optimizer, learning_rate=with_dicl or host.learning_rate)
            object.__setattr__(self, "optimizer", optimizer)
        self._check_settings()
        self._check_quality()
        self._check_levels()
        self._check_size("augment.crop", self.augment.crop)
        for size in self.render.sizes:
            self._check_size("render.sizes", size)

    def _check_settings(self) -> None:
        _check_at_least(1, self, "", "steps", "batch", "save_every", "log_every")
        _check_at_least(0, self, "", "seed", "workers", "picture_every", "validate_every")
        check_name("start_from", self.start_from, ("best", "last"))
        check_name("backend", self.backend, BACKENDS)
        if self.backend == "fused" and self.optimizer.accumulate > 1:
            raise InputError("optimizer.accumulate must be 1 with backend='fused'")
        if self.optimizer.frozen and not (self.start or self.needs_weights):
            raise InputError("optimizer.frozen needs initial weights; set needs_weights = true")
        if self.validate_every and not self.validation:
            raise InputError('validate_every needs a data set: validation = ["chairs:val"]')
        if not self.data:
            raise InputError("data is empty; name at least one data set: [[data]] name = …")

    def _check_quality(self) -> None:
        quality = find_quality(self.quality)
        quality.check_for(self.model)
        if not quality.radii:
            return
        if not self.model.smaller(quality.radii):
            raise InputError(
                f"quality {quality.name!r} has no smaller radius than this network: nothing would "
                f"train; leave quality out"
            )
        if self.optimizer.frozen or self.second_pass.every:
            what = "optimizer.frozen" if self.optimizer.frozen else "second_pass.every"
            raise InputError(f"{what} does not go with quality {quality.name!r}; leave it out")
        if not (self.start or self.needs_weights):
            raise InputError("a quality to train needs initial weights; set needs_weights = true")

    @property
    def radii(self) -> Radii:
        """The smaller radii of the levels that are trained for `quality`; empty: all is trained."""
        return self.model.smaller(find_quality(self.quality).radii)

    def _check_levels(self) -> None:
        model, strides = self.model, self.model.strides
        if self.loss.refined and not model.context:
            raise InputError("loss.refined must be empty when model.context is false")
        for key in ("refined", "matched", "matching"):
            weights = getattr(self.loss, key)
            if len(weights) not in (0, len(strides)):
                expected = f"one weight per level ({len(strides)})"
                raise InputError(f"loss.{key} needs {expected}, got {len(weights)}")
        has_second_pass = model.host_record.begins_from_flow and BEST.start in strides
        if self.second_pass.every and not has_second_pass:
            raise InputError(
                f"second_pass.every needs host 'dicl' and a level of stride {BEST.start} to start "
                f"at, got host {model.host!r} with the strides {', '.join(map(str, strides))}"
            )

    def _check_size(self, key: str, size: tuple[int, int]) -> None:
        multiple, deepest = self.model.pad_multiple, self.model.deepest_stride
        if any(side % multiple for side in size):
            why = f" (model.multiple is {self.model.multiple})" if multiple > deepest else ""
            raise InputError(f"{key} must be multiples of {multiple}{why}, got {size}")
        num_pairs = self.batch // self.optimizer.accumulate
        alone = num_pairs <= 1 and self.model.host_record.deeper_features
        if alone and size == (deepest, deepest) and not self.optimizer.freeze_norm:
            pixel = f"one pair of {deepest}x{deepest} is a single pixel of the coarsest map"
            advice = f"use at least two pairs at a time, or a larger {key}"
            raise InputError(f"{pixel}, and batch norm needs two: {advice}")


def _check_at_least(least: int, config: Any, prefix: str, *keys: str) -> None:
    for key in keys:
        if (value := getattr(config, key)) < least:
            raise InputError(f"{prefix}{key} must be at least {least}, got {value}")
