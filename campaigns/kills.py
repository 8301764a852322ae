"""Kill commands at random moments, run them again, and compare with a run that was left alone.

    OMP_NUM_THREADS=1 python -m campaigns.kills --count 50 --seed 0 -o report.json

Each command is killed (SIGKILL) until `--count` kills have hit it: in turn after a random CPU
time, and right before a random operation that changes a file. After each kill, whatever was whole
before still is, and no progress is lost. When the same command ends at last, its frames and
weights are bit for bit those of the run that was left alone, and no other file is there. Then it
starts again, every other time over an older output, which stays until it is replaced.

Bulk runs are killed by tests/bulk/test_bulk_kills.py.
"""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from random import Random

from .forked import NEVER, Ended, Moment, command, preload, run_forked, workplace
from .killable import Case, cases
from .report import Options, Part, main


def kills(options: Options) -> dict[str, Part]:
    """Kill every command."""
    preload()
    parts = {}
    with workplace() as work:
        for case in cases(work):
            if options.wants(case.name):
                parts[case.name] = Trial(case, work / case.name, options).run(options.count or 50)
                print(case.name, dict(parts[case.name].outcomes), *parts[case.name].failures[:3])
    return parts


class Trial:
    """One command, its output, and what that has to be."""

    def __init__(self, case: Case, folder: Path, options: Options) -> None:
        self.case, self.out, self.temporary = case, folder / "out", folder / "temporary"
        self.dice: Random = options.dice(case.name)
        self.part = Part()
        self.fresh()
        self.alone = self._run()
        assert self.alone.code == 0, self.alone.errors
        self.expected = case.contents(self.out)
        self.caches = {path.name for path in self.temporary.iterdir()}  # of torch
        assert self.expected, case.name
        self.older = False

    def run(self, count: int) -> Part:
        """Kill until `count` kills have hit, then let the command end."""
        self.fresh()
        hits, done = 0, 0
        while hits < count and len(self.part.failures) < 10:
            moment = self._moment(hits)
            ended = self._run(moment)
            if ended.code == -signal.SIGKILL:
                hits += 1
                self.part.outcomes["killed by time" if moment.seconds else "killed at a file"] += 1
                done = self._check_rest(moment, done)
            else:  # the moment would have come later
                done = self._check_end(ended, moment)
        self._check_end(self._run(), NEVER)
        self.part.measured = {"ended": self.part.outcomes.pop("ended")}
        self.part.measured["seconds_alone"] = round(self.alone.seconds, 2)
        return self.part

    def fresh(self) -> None:
        """Start again; every other time over an older, whole output."""
        shutil.rmtree(self.out.parent, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        self.out.mkdir()
        self.older = hasattr(self, "expected") and not self.older and self.case.old is not None
        if self.older and self.case.old is not None:
            self.case.old(self.out)

    def _run(self, moment: Moment | None = None) -> Ended:
        def call() -> None:
            os.environ["TMPDIR"], tempfile.tempdir = str(self.temporary), None
            self.case.prepare()
            command(self.case.words(self.out))()

        return run_forked(call, self.out, moment or NEVER)

    def _moment(self, number: int) -> Moment:
        if number % 2:
            return Moment(operation=self.dice.randint(1, self.alone.operations))
        return Moment(seconds=self.dice.uniform(0.001, self.alone.seconds))

    def _check_rest(self, moment: Moment, done: int) -> int:
        """Check what a kill has left; return the progress, which must not shrink."""
        try:
            now = self.case.progress(self.out)
            wrong = self.case.wrong(self.out, self.expected)
        except Exception as error:
            now, wrong = done, [f"unreadable: {error!r}"]
        if now < done and not self._is_whole():
            wrong.append(f"progress fell from {done} to {now}")
        self._fail(moment, wrong)
        return now

    def _is_whole(self) -> bool:
        """Whether the output is finished; the command was killed while it tidied up."""
        found = self.case.contents(self.out)
        return all(found.get(name) == digest for name, digest in self.expected.items())

    def _check_end(self, ended: Ended, moment: Moment) -> int:
        """Check a run that has ended, and start again."""
        if ended.code:
            self._fail(moment, [f"exit code {ended.code}: {ended.last_line}"])
        else:
            try:
                found = self.case.contents(self.out)
            except Exception as error:
                found = {repr(error): ""}
            names = {*found, *self.expected}
            wrong = [n for n in sorted(names) if found.get(n) != self.expected.get(n)]
            self._fail(moment, [f"{name} differs" for name in wrong])
            left = {path.name for path in self.temporary.iterdir()} - self.caches
            self._fail(moment, [f"left in TMPDIR: {name}" for name in left])
            self.part.outcomes["ended"] += 1
        self.fresh()
        return 0

    def _fail(self, moment: Moment, wrong: list[str]) -> None:
        if wrong:
            kills = self.part.outcomes.total() - self.part.outcomes["ended"]
            self.part.failures.append(f"after {kills} kills, {moment}: {'; '.join(wrong[:3])}")


if __name__ == "__main__":
    main("kills", __doc__, kills, count=50)
