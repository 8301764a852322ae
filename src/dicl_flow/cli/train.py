"""Commands that train: `train` for one recipe, `reproduce` for the paper's stages, `ablate`."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError, counted, unknown_name
from . import options
from .command import as_flags
from .inputs_outputs import check_matplotlib, check_outputs, parse_roots
from .options import flag, optional

if TYPE_CHECKING:
    from ..config import TrainConfig
    from ..data import FlowPair
    from ..lab.variants import Variant
    from ..training import Outcome, Processes, RunFolder
    from ..training.chain import Pace, Stage

STOPPED = "stopped; the same command resumes it"
PROTOCOLS = ("rendered", "paper")


class TrainSettings(options.ReadSettings):
    """The settings of a command that trains, in one process or, with torchrun, in several."""

    data: options.Data = None
    device: options.Device = "auto"
    silent = False  # with --quiet, and in all processes but the first

    @contextmanager
    def joined(self) -> "Iterator[Processes]":
        """Join the other processes of torchrun, if there are any, and leave them at the end."""
        from ..estimation.compute import choose_device
        from ..training import join, leave

        processes = join(choose_device(self.device))
        self.silent = self.quiet or not processes.is_first
        try:
            yield processes
        finally:
            leave(processes)

    def print_line(self, line: str) -> None:
        """Print a line of progress to stderr."""
        if not self.silent:
            typer.echo(line, err=True)


class Train(TrainSettings):
    """Train a network with a recipe: a stage of the paper, or your own.

    Examples:
      dicl-flow train chairs-0 --data chairs=FlyingChairs_release
      dicl-flow train finetune --data pairs=my-data --init weights.safetensors --minutes 60
      dicl-flow train rendered-0 --data rendered=PHOTOS --minutes 9
      dicl-flow train chairs-0 --data chairs=FlyingChairs_release --overfit 8
      torchrun --nproc-per-node 8 -m dicl_flow train chairs-0 --data chairs=FlyingChairs_release
    """

    recipe: str = Argument(..., help="Packaged name, or a .toml file.")
    changes: list[str] | None = optional(
        "Change a key of the recipe: optimizer.learning_rate=1e-4.", "--set"
    )
    output: Path | None = options.output("Run folder; default: runs/RECIPE.", None, "DIR")
    init: str | None = optional(
        "Weights to start from, or 'random'; default: those of the stage the recipe names."
    )
    resume: bool = flag("--resume", "Resume the run in --output.")
    minutes: float | None = optional("Stop after N minutes; the schedule is scaled.", metavar="N")
    overfit: int | None = optional("Train on N fixed samples until they fit.")

    def __call__(self) -> None:
        from ..training import RunFolder, check_roots, read_recipe
        from ..training.recipe import find_start

        config = read_recipe(self.recipe, self.changes or [])
        roots = parse_roots(self.data, also="rendered")
        fixed = self.overfit is not None
        name = f"{config.name}-overfit" if fixed else config.name
        folder = RunFolder(self.output or Path("runs") / name)
        check_outputs(folders=[folder.path])
        initial = None
        if self.resume:
            folder.check_resumable()
        elif self.init is not None or not fixed:  # fixed samples are to be learned from any start
            initial = find_start(config, folder.path, self.init)
        check_roots(config, roots)

        from ..training import FixedSource, Limits, Validation, open_source, train

        with self.joined() as processes:
            number = self.overfit or 0
            source = FixedSource(config, roots, number) if fixed else open_source(config, roots)
            outcome = train(
                config,
                source,
                folder,
                processes,
                initial=initial,
                resume=self.resume,
                limits=Limits(self.minutes, 0.5 if fixed else None),
                validation=None if fixed else Validation.of(config, roots),
                quiet=self.silent,
            )
        if processes.is_first:
            self._conclude(outcome, folder)
        if outcome.signal is not None:
            raise typer.Exit(128 + outcome.signal)

    def _conclude(self, outcome: "Outcome", folder: "RunFolder") -> None:
        """Print how the run ended."""
        best = outcome.validated
        if self.as_json:
            summary = {
                "finished": outcome.finished,
                "step": outcome.step,
                "epe": outcome.epe if math.isfinite(outcome.epe) else None,
                **best.best(),
                "signal": outcome.signal,
            }
            files = [folder.weights, folder.checkpoint, *([folder.best] if best.best_step else [])]
            self.report({**summary, "written": files})
        elif not self.quiet:
            end = "finished" if outcome.finished else "stopped; resume with --resume"
            typer.echo(f"{end}: step {outcome.step}, EPE {outcome.epe:.2f} px, in {folder.path}")
            if best.best_step:
                error = f"{best.best_epe:.2f} px in validation"
                typer.echo(f"best: step {best.best_step}, {error}, {folder.best.name}")


class Reproduce(TrainSettings):
    """Train the stages of the paper, each from the best (or last) weights of the one before.

    Before it starts, a few steps of each stage are taken to estimate the time. The same command
    resumes a chain that was interrupted; stages that have finished are skipped.

    Examples:
      dicl-flow reproduce things --data chairs=Chairs --data things-clean=FlyingThings3D_subset
      dicl-flow reproduce all --dry-run --data chairs=FlyingChairs_release
      dicl-flow reproduce chairs --without-projection --data chairs=FlyingChairs_release
    """

    target: str = Argument("all", help="The last data set: chairs, things, sintel, kitti; or all.")
    output: Path | None = options.output("Folder of stages; default: runs/reproduce.", None, "DIR")
    without_projection: bool = flag("--without-projection", 'The paper\'s "Ours w/o DAP".')
    start_from: str | None = optional("Weights a stage takes; default: best.", metavar="best|last")
    changes: list[str] | None = optional(
        "Change a key of all stages, or of one: things:steps=100000.", "--set"
    )
    dry_run: bool = flag("--dry-run", "Print the stages, data and time; train nothing.")

    def __call__(self) -> None:
        from ..training.chain import check_needs, plan_chain

        roots = parse_roots(self.data)
        default = "reproduce-without-projection" if self.without_projection else "reproduce"
        folder = self.output or Path("runs") / default
        check_outputs(folders=[] if self.dry_run else [folder])
        stages = plan_chain(
            self.target,
            folder,
            _with_start(self.changes or [], self.start_from),
            without_projection=self.without_projection,
        )
        if not self.dry_run:
            check_needs(stages, roots)

        from ..training.chain import describe_chain, train_chain

        trained = [] if self.dry_run else [stage for stage in stages if not stage.finished]
        with self.joined() as processes:
            plan = describe_chain(stages, roots, processes, self.print_line)
            if not (self.silent or self.as_json):
                _print_plan(plan)
            signal = train_chain(trained, roots, processes, self.print_line, quiet=self.silent)
        if processes.is_first:
            self._conclude(plan, stages, trained, signal)
        if signal is not None:
            raise typer.Exit(128 + signal)

    def _conclude(
        self,
        plan: Mapping[str, Any],
        stages: Sequence["Stage"],
        trained: Sequence["Stage"],
        signal: int | None,
    ) -> None:
        """Print the results of the stages that have finished."""
        results = {stage.config.name: stage.finished for stage in stages if stage.finished}
        if self.as_json:
            folders = [stage.folder for stage in trained]
            files = [path for run in folders for path in (run.best, run.weights) if path.is_file()]
            done = {"finished": len(results) == len(stages), "signal": signal}
            self.report({**plan, **done, "results": results, "written": files})
        elif not self.quiet:
            for stage in trained:
                record = results.get(stage.config.name)
                end = STOPPED if record is None else "finished"
                if record and record["best_step"] is not None:
                    end += f", best: step {record['best_step']:,}, {record['best_epe']:.2f} px"
                typer.echo(f"{stage.config.name:<9} {end}")


def _with_start(changes: Sequence[str], start_from: str | None) -> list[str]:
    return [*changes, *([f"start_from={start_from}"] if start_from else [])]


def _print_plan(plan: Mapping[str, Any], what: str = "in all") -> None:
    """Print the stages of a plan, their data, and the time."""
    for stage in plan["stages"]:
        done = f"{stage['steps_done']:,} of " if stage["steps_done"] else ""
        if stage["finished"]:
            typer.echo(f"{stage['name']:<9} finished, {counted(stage['steps'], 'step')}")
            continue
        typer.echo(
            f"{stage['name']:<9} {done}{counted(stage['steps'], 'step')} of "
            f"{counted(stage['batch'], 'pair')}, {counted(stage['pairs'], 'pair')} in all, "
            f"{_hours(stage['seconds'])}"
        )
        for need in stage["data"]:
            state = need["problem"] or f"{counted(need['pairs'], 'pair')} in {need['root']}"
            typer.echo(f"{'':<9}   {need['name']}: {as_flags(state)}")
    gpu = "" if plan["gpu_hours"] is None else f", {plan['gpu_hours']:.1f} GPU-hours"
    typer.echo(f"{what}: {_hours(plan['seconds'])}{gpu}, estimated from a few steps of each stage")


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown without the data"
    return options.in_time(seconds)


class Ablate(TrainSettings):
    """Train and score the variants of one of the paper's ablations under equal conditions.

    All variants of a seed see the same pairs in the same order. Data sets that the recipe does
    not train on are scored; without the recipe's own, only what is finished already is scored.
    The same command resumes a study that was interrupted. At the end the folder holds STUDY.md,
    .json, .svg and .png, and the results and weights of each variant.

    --protocol paper trains each variant in the stages of `reproduce`, with the learning rate of its
    host, and scores Chairs' validation split after those on Chairs, everything else at the end.

    The study figures trains the matchers (and DAP) and the last layers of the feature net, without
    context nets, from the feature net of --init (default: the packaged weights), and writes them
    as small weights files.

    Examples:
      dicl-flow ablate metrics --data rendered=PHOTOS --data sintel-clean=Sintel -o runs/ablation
      dicl-flow ablate metrics --data kitti15=KITTI2015 -o runs/ablation
      dicl-flow ablate projection --seeds 3 --pairs 20000 --data rendered=PHOTOS -o runs/ablation
      dicl-flow ablate hosts --protocol paper --data chairs=FlyingChairs_release -o runs/paper
      dicl-flow ablate metrics --protocol paper --variant DICL --dry-run -o runs/paper
      dicl-flow ablate figures --data rendered=PHOTOS -o runs/figures
      dicl-flow ablate claims --seeds 3 --minutes 9 --data rendered=PHOTOS -o runs/claims
    """

    study: str = Argument(..., help="metrics, projection, hosts, figures, or claims.")
    output: Path = options.output("Folder for all results.", ..., "DIR")
    protocol: str = Option(
        "rendered", help="rendered: one short stage; paper: the stages of Chairs, then Things."
    )
    names: list[str] | None = optional("Train only this; repeatable.", "--variant", metavar="NAME")
    pairs: int | None = optional("Training pairs per variant; default: by recipe.", min=1)
    seed: int = Option(0, min=0, max=1_000_000, help="The first seed.")
    seeds: int = Option(1, min=1, help="Seeds to train each variant with.")
    scenes: int | None = optional("Held-out scenes to score on; default: 64.", min=1)
    minutes: float | None = optional(
        "Begin no variant that would not be finished and scored after N minutes.", metavar="N"
    )
    keep: list[str] | None = optional(
        "Keep the first seed's estimates on this data set in flows/VARIANT; repeatable.",
        metavar="NAME",
    )
    recipe: str | None = optional("Packaged name or .toml; default: ablation, or figures.")
    init: str | None = optional("Weights to start from, for recipes that need them.")
    start_from: str | None = optional("Weights a stage takes; default: best.", metavar="best|last")
    changes: list[str] | None = optional(
        "Change a key of the recipe: optimizer.precision=fp32; of one stage of the "
        "paper: things:steps=100000.",
        "--set",
    )
    dry_run: bool = flag(
        "--dry-run", "Print the paper's stages, data and time; train and write nothing."
    )

    def __call__(self) -> None:
        self._check_protocol()
        if self.dry_run:
            self._print_plans()
            return
        sets = self._check_data()

        from ..files import write_files
        from ..lab.paper_tables import report_study
        from ..lab.variants import finished_variants, small_files

        check_matplotlib()
        check_outputs(folders=[self.output])
        with self.joined() as processes:
            if self._trains:
                self._train_stages(processes) if self._of_paper else self._train(processes, sets)
        if not processes.is_first:
            return
        finished = finished_variants(self._variants, self.output)
        for name, listed in sets.items():
            self._evaluate(finished, name, listed)
        scored = finished_variants(self._variants, self.output)
        report = report_study(self.study, scored, self.output)
        if self.study == "figures":
            report.contents.update(small_files(finished, self.output))
        write_files(report.contents)
        self.report_grids(report.document, report.contents, report.grids)

    @property
    def _of_paper(self) -> bool:
        return self.protocol == "paper"

    def _check_protocol(self) -> None:
        """Refuse unknown protocols, and options of the other one."""
        if self.protocol not in PROTOCOLS:
            raise unknown_name("protocol", self.protocol, PROTOCOLS)
        refused = {"start-from": self.start_from, "dry-run": self.dry_run or None}
        if self._of_paper:
            refused = self.chosen("recipe", "pairs", "scenes", "init", "minutes", "keep")
        used = ", ".join(f"--{name}" for name, value in refused.items() if value is not None)
        if used and self._of_paper:
            raise InputError(f"--protocol paper has its own recipes; leave out {used}")
        if used:
            raise InputError(f"{used} is for the stages of the paper: --protocol paper")

    @cached_property
    def _variants(self) -> "list[Variant]":
        from ..lab.variants import paper_variants, recipe_variants

        seeds = range(self.seed, self.seed + self.seeds)
        changes, names = self.changes or [], self.names or []
        if self._of_paper:
            return paper_variants(self.study, _with_start(changes, self.start_from), seeds, names)
        how: dict[str, Any] = {"pairs": self.pairs, "initial": self.init, "names": names}
        return recipe_variants(self.study, self.recipe, changes, seeds, **how)

    @cached_property
    def _roots(self) -> dict[str, Path]:
        return parse_roots(self.data, also="rendered")

    @cached_property
    def _trained_on(self) -> set[str]:
        """The data sets of training, as `--data` may name them: with and without a split."""
        stages = [stage for variant in self._variants for stage in variant.stages]
        names = {entry.name for stage in stages for entry in stage.data}
        return names | {name.partition(":")[0] for name in names}

    @property
    def _trains(self) -> bool:
        """Whether data to train on was given; otherwise only what is finished is scored."""
        return bool(self._trained_on & self._roots.keys())

    def _check_data(self) -> "dict[str, list[FlowPair]]":
        """Refuse to train if data is missing; return the pairs of the data sets to score on."""
        from ..data import list_pairs
        from ..training import check_roots
        from ..training.chain import check_needs, open_stages

        trained_on = self._trained_on
        others = {name: root for name, root in self._roots.items() if name not in trained_on}
        if self._trains and self._of_paper:
            opened = [open_stages(v.stages, self.output / v.folder) for v in self._variants]
            check_needs([stage for stages in opened for stage in stages], self._roots)
        elif self._trains:
            check_roots(self._variants[0].config, self._roots)
        if self._of_paper and "chairs" in self._roots:
            others.setdefault("chairs:val", self._roots["chairs"])
        for name in self.keep or ():
            if name not in others:
                raise unknown_name("data set to keep estimates of", name, others)
        return {name: list_pairs(name, root, needs_truth=True) for name, root in others.items()}

    def _print_plans(self) -> None:
        """Print the stages of each variant, and what all of them cost."""
        variants, roots = self._variants, self._roots  # what is wrong, before torch is imported

        from ..lab.variants import VariantFolder
        from ..training.chain import describe_chain, total_cost

        plans: list[dict[str, Any]] = []
        measured: dict[TrainConfig, Pace] = {}  # of stages, whatever the seed
        with self.joined() as processes:
            for variant in variants:
                stages = VariantFolder(self.output, variant).stages()
                plan = describe_chain(stages, roots, processes, self.print_line, measured)
                plans.append({"variant": variant.name, "seed": variant.config.seed, **plan})
                if not (self.silent or self.as_json):
                    typer.echo(_title(variant))
                    _print_plan(plan)
        total = total_cost(plans, processes)
        if self.as_json and processes.is_first:
            self.report({"study": self.study, "variants": plans, **total, "written": []})
        elif not self.silent:
            _print_plan({"stages": [], **total}, "all variants")

    def _unfinished(self) -> "list[Variant]":
        from ..lab.variants import VariantFolder

        return [v for v in self._variants if VariantFolder(self.output, v).read() is None]

    def _train_stages(self, processes: "Processes") -> None:
        """Train the variants that are not finished in the stages of the paper."""
        from ..lab.ablation import conclude_stages
        from ..lab.variants import VariantFolder
        from ..training.chain import train_chain

        unfinished = self._unfinished()
        processes.any(False)  # all have the same list: none has written a result yet
        for variant in unfinished:
            self.print_line(_title(variant))
            stages = [s for s in VariantFolder(self.output, variant).stages() if not s.finished]
            how = (self._roots, processes, self.print_line)
            signal = train_chain(stages, *how, quiet=self.silent)
            if signal is not None:
                self.print_line(STOPPED)
                raise typer.Exit(128 + signal)
            if processes.is_first:
                conclude_stages(variant, self.output, processes.device)

    def _train(self, processes: "Processes", sets: "Mapping[str, list[FlowPair]]") -> None:
        """Train the variants that are not finished, each in one stage, and score each at once."""
        from ..lab.ablation import open_laboratory

        if processes.world_size > 1:
            raise InputError("torchrun is for --protocol paper; the other trains in one process")
        unfinished = self._unfinished()
        if not unfinished:
            return
        begin, longest = monotonic(), 0.0
        how = (unfinished[0].config, self._roots, self.scenes or 64, processes.device)
        laboratory = open_laboratory(self.output, *how, quiet=self.quiet)
        for number, variant in enumerate(unfinished):
            start = monotonic()
            late = self.minutes is not None and start + longest > begin + 60 * self.minutes
            if number and late:
                left = counted(len(unfinished) - number, "variant")
                self.print_line(f"{left} left; the same command continues")
                return
            self.print_line(_title(variant))
            outcome = laboratory.train(variant)
            if not outcome.finished:
                typer.echo(STOPPED, err=True)
                raise typer.Exit(128 + (outcome.signal or 0))
            for name, listed in sets.items():
                self._evaluate([variant], name, listed)
            longest = max(longest, monotonic() - start)

    def _evaluate(self, variants: "Iterable[Variant]", data: str, pairs: "list[FlowPair]") -> None:
        from ..evaluation.evaluate import folder_name
        from ..lab.ablation import evaluate_variant

        for variant in variants:
            tracked = self.track(pairs, f"{variant.name} on {data}")
            kept = data in (self.keep or ()) and variant.config.seed == self.seed
            place = self.output / "flows" / variant.file_name / folder_name(data)
            how = (self.device, tracked, place if kept else None)
            if not evaluate_variant(variant, self.output, data, pairs, *how):
                folder = self.output / variant.folder
                missing = f"{variant.name} is not scored on {data}: no weights in {folder}"
                typer.echo(missing, err=True)


def _title(variant: "Variant") -> str:
    return f"{variant.name}, seed {variant.config.seed}: {variant.folder}"
