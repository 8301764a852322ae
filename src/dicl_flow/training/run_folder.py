"""The folder of a training run: config, log, checkpoint, weights; files are replaced atomically."""

import io
from pathlib import Path
from typing import Any

from ..config import TrainConfig, differences, to_toml
from ..errors import InputError
from ..files import check_folder, read_bytes, write_files

Checkpoint = dict[str, Any]

# Settings that may change when a run is resumed, because they do not affect the result.
_HARMLESS = {"workers", "save_every", "log_every", "picture_every", "needs_weights"}


class RunFolder:
    """The files of one training run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "last.ckpt"
        self.weights = self.path / "weights.safetensors"
        self.best = self.path / "best.safetensors"
        self.config = self.path / "config.toml"
        self.log = self.path / "log.jsonl"
        self.bad_batch = self.path / "bad_batch.pt"

    def chosen(self, start_from: str) -> Path:
        """Return the weights for a stage that starts from the "best", or the "last", of this run.

        Without validation there are no best ones; the last take their place.
        """
        return self.best if start_from == "best" and self.best.is_file() else self.weights

    def prepare(self, config: TrainConfig, *, resume: bool) -> None:
        """Prepare the folder for a run; refuse one that already holds a run, unless `resume`."""
        check_folder(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob(".*.*"):  # temporary files of a killed run
            leftover.unlink()
        if self.checkpoint.exists() and not resume:
            raise InputError(
                f"{self.path} already holds a run; resume it with `resume=True`, or use another "
                f"folder"
            )
        if not self.checkpoint.exists():
            self.best.unlink(missing_ok=True)  # of an earlier run
            write_files({self.config: to_toml(config).encode()})

    def check_resumable(self) -> None:
        """Refuse a folder without a checkpoint; a mistyped name must not start a new run."""
        if not self.checkpoint.is_file():
            raise InputError(
                f"there is no run to resume in {self.path} (no {self.checkpoint.name}); check "
                f"the name, or start a run there without `resume=True`"
            )

    def last(self, config: TrainConfig) -> Checkpoint | None:
        """Return the checkpoint to resume from, if any; refuse one of a run with other settings."""
        if not self.checkpoint.exists():
            return None
        checkpoint = load_checkpoint(self.checkpoint)
        self.check_settings(checkpoint["config"], config)
        return checkpoint

    def check_settings(self, begun: str, config: TrainConfig) -> None:
        """Refuse to resume a run that was begun with other settings, given as TOML."""
        changes = differences(begun, to_toml(config))
        changed = [key for key in changes if key not in _HARMLESS]
        if changed:
            raise InputError(
                f"{self.path} was started with another {', '.join(changed)}; resume it with "
                f"the same, or start a new run from its weights with `initial='{self.weights}'`"
            )

    def save(self, checkpoint: Checkpoint, weights: bytes, *, best: bool = False) -> None:
        """Replace checkpoint and weights together; with `best`, the best weights too."""
        import torch

        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        # The best weights first: killed in between, the run resumes before the step that made them
        # and makes the same again.
        contents = {self.best: weights} if best else {}
        contents |= {self.checkpoint: buffer.getvalue(), self.weights: weights}
        write_files(contents, durable=True)

    def save_bad_batch(self, batch: dict[str, Any]) -> None:
        """Save the batch of the last step that was not finite."""
        import torch

        buffer = io.BytesIO()
        torch.save(batch, buffer)
        write_files({self.bad_batch: buffer.getvalue()})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; nothing in it is executed."""
    data = io.BytesIO(read_bytes(path))
    import torch

    try:
        return torch.load(data, map_location="cpu", weights_only=True)
    except Exception:  # torch documents none for damaged files
        raise InputError(f"{path} is not a checkpoint of this package, or is damaged") from None
