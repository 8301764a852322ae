"""The command `adapt`: better flow on footage, without ground truth."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from ..errors import InputError
from . import options
from .inputs_outputs import check_outputs, check_weights, find_photos
from .options import flag, in_time, optional

if TYPE_CHECKING:
    from ..adaptation.job import Adapted
    from ..adaptation.plan import Plan

NOT_ACCEPTED = 4
"""The exit code of a run whose weights are not better."""


class Adapt(options.Settings):
    """Train weights on footage without ground truth; keep them if flow on it gets better.

    CLIPS are videos, folders or patterns of frames. A teacher, the same weights in both
    directions, says where flow can be trusted; a student learns from that, by turns with
    rendered scenes. A part of the footage is held back to judge by. The weights are written only
    if they are better there, and not worse on rendered scenes; otherwise the exit code is 4. A
    report with pictures is in a folder next to the output. The same command resumes a run that was
    stopped.

    Examples:
      dicl-flow adapt clip.mp4 more/ -o mine.safetensors --minutes 10
      dicl-flow adapt clip.mp4 -o mine.safetensors --steps 1200 --photos PHOTOS
      dicl-flow adapt 'shots/*.png' -o mine.safetensors --dry-run
    """

    clips: list[str] = Argument(..., metavar="CLIPS", help="Videos, folders or 'globs' of frames.")
    output: Path = options.output("The .safetensors to write.")
    weights: options.Weights = None
    steps: int | None = optional("Training steps: the same result whatever the clock does.", min=1)
    minutes: float | None = optional("Train for N minutes instead.", metavar="N")
    photos: str = Option(
        "procedural", help="Photographs for rendered scenes, or 'procedural': computed textures."
    )
    disk: float | None = optional("Most GB for frames and flows while it runs; default: 4.")
    keep_names: bool = flag("--keep-names", "Record names of files, not only hashes.")
    seed: int = Option(0, min=0, help="The same seed gives the same views and scenes.")
    changes: list[str] | None = optional(
        "Change a key of the recipe 'adapt', or a setting: adapt.new_frames=0.3.", "--set"
    )
    device: options.Device = "auto"
    fenced: options.Fenced = False
    restart: bool = flag("--restart", "Start from scratch instead of resuming.")
    dry_run: bool = flag("--dry-run", "Only say what would be done, and how long it takes.")

    def __call__(self) -> None:
        plan = self._plan()

        from ..adaptation.adapt import expected_seconds
        from ..adaptation.job import Stopped, run
        from ..estimation.compute import choose_device

        known = plan.summary()
        device = choose_device(self.device)
        if self.dry_run or device.type == "cpu":  # there it takes hours
            known |= _times(expected_seconds(plan, self.device))
        if self.dry_run:
            self.report({**known, "device": str(device)})
            return
        if not self.as_json:
            self.report(known, to_stderr=True)
        try:
            ended = run(
                plan,
                device=self.device,
                restart=self.restart,
                quiet=self.quiet or self.as_json,
                watch=self.track,
            )
        except Stopped as stopped:
            typer.echo("stopped; the same command resumes it", err=True)
            raise typer.Exit(128 + stopped.signal) from None
        self._conclude(ended)

    def _plan(self) -> "Plan":
        """Check everything that can be checked before work is done."""
        from ..data.frames import check_source

        for clip in self.clips:
            check_source(clip)
        check_weights(self.weights)
        check_outputs(
            [self.output],
            inputs=[*map(Path, self.clips), self.weights],
            endings=[".safetensors"],
        )
        if self.steps is not None and self.minutes is not None:
            raise InputError("give --steps or --minutes, not both")
        photos = find_photos(self.photos)

        from ..adaptation.plan import make_plan

        room = [] if self.disk is None else [f"adapt.disk={float(self.disk)}"]
        return make_plan(
            self.clips,
            self.output,
            photos=photos,
            changes=[*(self.changes or []), *room],
            watch=self.track,
            **self.chosen("weights", "steps", "minutes", "seed", "keep_names"),
        )

    def _conclude(self, ended: "Adapted") -> None:
        """Print how it ended; exit code 4 if the weights were not accepted."""
        verdict = ended.numbers["verdict"]
        self.report(
            {
                "accepted": ended.accepted,
                "written": [ended.weights] if ended.weights else [],
                "report": ended.report / "report.md",
                "not_accepted": list(ended.reasons),
                "warnings": list(ended.warnings),
                **{
                    f"{name}_change": f"{verdict[name]['relative']:+.1%}"
                    for name in ("census", "disagreement", "scenes")
                    if name in verdict
                },
            }
        )
        if not ended.accepted:
            raise typer.Exit(NOT_ACCEPTED)


def _times(seconds: dict[str, float]) -> dict[str, str]:
    """Return what to print of the time: in all, then its parts."""
    parts = ", ".join(f"{name} {in_time(value)}" for name, value in seconds.items())
    return {"expected_time": f"{in_time(sum(seconds.values()))}: {parts}"}
