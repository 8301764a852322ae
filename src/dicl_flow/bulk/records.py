"""journal.jsonl: what depends on the run, such as times and machines, and not on the flows."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from platform import node
from time import monotonic
from typing import Any

from ..files import naming
from .storage import LocalFolder, Storage

JOURNAL = "journal.jsonl"
_EVERY = 10.0  # seconds between two writes to a store, which cannot append


class Journal:
    """Appends a line for each event; runs on other machines append to the same file.

    A store gets one journal for each run: journal-RUN.jsonl.
    """

    def __init__(self, storage: Storage, device: str) -> None:
        self._storage, self._device = storage, device
        self._run = f"{node()}-{os.getpid()}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        self._lines: list[str] = []
        self._written = 0.0

    def note(self, event: str, **about: Any) -> None:
        """Write a line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        about = {"time": now, "run": self._run, "device": self._device, "event": event, **about}
        line = json.dumps(about) + "\n"
        if isinstance(self._storage, LocalFolder):
            path = self._storage.root / JOURNAL
            with naming(path), path.open("a") as file:
                file.write(line)
            return
        self._lines.append(line)
        if monotonic() - self._written > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the lines that a store has not got yet."""
        if self._lines:
            name = JOURNAL.replace(".", f"-{self._run}.")
            self._storage.write(name, "".join(self._lines).encode())
            self._written = monotonic()


def read_journals(storage: Storage) -> list[Mapping[str, Any]]:
    """Read the lines of all journals; one that was cut off by a kill is left out."""
    names = [name for name in storage.names() if name.startswith("journal")]
    lines = [line for name in names for line in storage.read(name).decode().splitlines()]
    return [entry for line in lines if (entry := _entry(line))]


def _entry(line: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line))
    except ValueError:
        return None
