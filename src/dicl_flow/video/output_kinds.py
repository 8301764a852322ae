"""What a video is turned into: outputs by their names, and the writers that make them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..data.video_frames import pyav
from ..errors import InputError, unknown_name
from ..files import FLOW_SUFFIXES, check_flow_name
from .encoders import find_coding
from .encoding import CODINGS, Coding, exact_rate
from .movies import PictureVideo
from .panels import parse_panels
from .statistics import StatisticsTable
from .writers import FlowFiles, FlowStack, Writer


def output_kind(output: Path) -> str:
    """Return what an output is, by its name: video, array or folder."""
    suffix = output.suffix.lower()
    if output.is_dir() or not suffix:
        return "folder"
    if suffix in CODINGS:
        pyav()  # complain now if it is not installed
        return "video"
    if suffix == ".npy":
        return "array"
    raise InputError(
        f"{output}: a video ends in {', '.join(CODINGS)}, an array in .npy, a folder has no ending"
    )


@dataclass(frozen=True)
class Outputs:
    """What to write of the flows: at most one video, one array, one folder; and a table."""

    paths: tuple[Path, ...]
    stats: Path | None = None
    """A .csv file with the statistics of each flow."""
    show: str | None = None
    """The pictures of a video, with commas; None: the colour wheel."""
    format: str | None = None
    """The files in a folder, such as npz; None: flo."""
    backward: bool = False
    """Write the backward flow too, to a folder or an array."""
    occlusion: bool = False
    """Write masks of hidden pixels, to a folder."""
    max: float | None = None
    """The length in px that gets full colour; None: the longest vector."""
    encoder: str | None = None
    """FFmpeg's name of the encoder of a video, with options (`find_coding`)."""

    def __post_init__(self) -> None:
        if len(set(self.kinds.values())) < len(self.paths):
            raise InputError("give one output of a kind: one video, one array, one folder")
        if self.stats is not None and self.stats.suffix.lower() != ".csv":
            raise InputError(f"{self.stats}: the statistics are written as .csv")
        _ = self.panels, self.coding  # refuse unknown pictures and encoders
        if self.max is not None and not self.max > 0:
            raise InputError(f"`max` must be positive, got {self.max:g}")
        if self.format is not None and f".{self.format}" not in FLOW_SUFFIXES:
            raise unknown_name("`format`", self.format, [suffix[1:] for suffix in FLOW_SUFFIXES])
        check_flow_name(self.suffix)
        self._refuse("show", self.show is not None, "video")
        self._refuse("encoder", self.encoder is not None, "video")
        self._refuse("format", self.format is not None, "folder")
        self._refuse("backward", self.backward, "folder", "array")
        hint = "; a video has `show='occlusion'`"
        self._refuse("occlusion", self.occlusion, "folder", hint=hint)

    def _refuse(self, name: str, given: bool, *kinds: str, hint: str = "") -> None:
        """Refuse an option that makes no sense for these outputs."""
        if given and not set(kinds) & set(self.kinds.values()):
            raise InputError(f"`{name}` is for a {' or '.join(kinds)}, and no output is one{hint}")

    @property
    def kinds(self) -> dict[Path, str]:
        """What each output is: a video, an array or a folder."""
        return {path: output_kind(path) for path in self.paths}

    @property
    def panels(self) -> tuple[str, ...]:
        """The names of the pictures of a video."""
        return parse_panels("wheel" if self.show is None else self.show)

    @cached_property
    def coding(self) -> Coding | None:
        """How the video is encoded, if there is one."""
        videos = [path for path, kind in self.kinds.items() if kind == "video"]
        return find_coding(videos[0], self.encoder) if videos else None

    @property
    def suffix(self) -> str:
        """The ending of the files in a folder."""
        return f".{self.format or 'flo'}"

    @property
    def needs_backward(self) -> bool:
        """Whether the flow has to be estimated in both directions."""
        return self.backward or self.occlusion or "occlusion" in self.panels

    def writers(self, parts: Path, rate: float) -> list[Writer]:
        """Make the writers; `parts` is a folder for what is not finished."""

        def make(path: Path, kind: str) -> Writer:
            if kind == "folder":
                both = {"backward": self.backward, "occlusion": self.occlusion}
                return FlowFiles(path, self.suffix, **both)
            if kind == "array":
                return FlowStack(path, parts, backward=self.backward)
            rest = (exact_rate(rate), self.panels, self.max, self.coding)
            return PictureVideo(path, parts, *rest)

        made = [make(path, kind) for path, kind in self.kinds.items()]
        return [*made, *([StatisticsTable(self.stats, parts)] if self.stats else [])]
