"""The command `ablate`."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from ..errors import InputError, unknown_name
from . import options
from .inputs_outputs import check_outputs, parse_roots
from .train import STOPPED, joined, line_printer, print_plan, with_start

if TYPE_CHECKING:
    from ..config import TrainConfig
    from ..data import FlowPair
    from ..lab.paper_tables import Report
    from ..lab.variants import Variant
    from ..training import Processes
    from ..training.chain_run import Pace

PROTOCOLS = ("rendered", "paper")


class Ablate(options.Settings):
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
    """

    study: str = Argument(..., help="metrics, projection, hosts, or figures.")
    output: Path = Option(..., "--output", "-o", metavar="DIR", help="Folder for all results.")
    data: options.Data = None
    protocol: str = Option(
        "rendered", help="rendered: one short stage; paper: the stages of Chairs, then Things."
    )
    names: list[str] | None = Option(
        None, "--variant", metavar="NAME", help="Only this variant; repeatable."
    )
    pairs: int | None = Option(
        None, min=1, help="Training pairs per variant; default: the recipe's."
    )
    seed: int = Option(0, min=0, max=1_000_000, help="The first seed.")
    seeds: int = Option(1, min=1, help="Seeds to train each variant with.")
    scenes: int | None = Option(None, min=1, help="Held-out scenes to score on; default: 64.")
    recipe: str | None = Option(
        None, help="Packaged name, or a .toml file; default: ablation, or figures."
    )
    init: str | None = Option(None, help="Weights to start from, for recipes that need them.")
    start_from: options.StartFrom = None
    changes: list[str] | None = Option(
        None,
        "--set",
        help="Change a key of the recipe: optimizer.precision=fp32; of one stage of the "
        "paper: things:steps=100000.",
    )
    dry_run: bool = Option(
        False, "--dry-run", help="Print the paper's stages, data and time; train and write nothing."
    )
    device: options.Device = "auto"
    max_size: options.MaxSize = None

    def __call__(self) -> None:
        self._check_protocol()
        if self.dry_run:
            self._print_plans()
            return
        sets = self._check_data()

        # torch, which takes seconds: after all that may be missing
        from ..estimation.compute import choose_device
        from ..lab.paper_tables import report_study
        from ..lab.variants import finished_variants, small_files
        from ..pictures.figures import draw_figure

        device = choose_device(self.device)
        draw_figure(1, 1)  # complain now if there is no matplotlib
        check_outputs(folders=[self.output])
        with joined(device) as processes:
            if self._trains and self._of_paper:
                self._train_stages(processes)
            elif self._trains:
                self._train(processes)
        if not processes.is_first:
            return
        finished = finished_variants(self._variants, self.output)
        for name, listed in sets.items():
            self._evaluate(finished, name, listed)
        scored = finished_variants(self._variants, self.output)
        report = report_study(self.study, scored, self.output)
        if self.study == "figures":
            report.contents.update(small_files(finished, self.output))
        self._write(report)

    @property
    def _of_paper(self) -> bool:
        return self.protocol == "paper"

    def _check_protocol(self) -> None:
        """Refuse unknown protocols, and options of the other one."""
        if self.protocol not in PROTOCOLS:
            raise unknown_name("protocol", self.protocol, PROTOCOLS)
        refused = {"start-from": self.start_from, "dry-run": self.dry_run or None}
        if self._of_paper:
            refused = {name: getattr(self, name) for name in ("recipe", "pairs", "scenes", "init")}
        given = ", ".join(f"--{name}" for name, value in refused.items() if value is not None)
        if given and self._of_paper:
            raise InputError(f"--protocol paper has its own recipes; leave out {given}")
        if given:
            raise InputError(f"{given} is for the stages of the paper: --protocol paper")

    @cached_property
    def _variants(self) -> "list[Variant]":
        from ..lab.variants import paper_variants, recipe_variants

        seeds = range(self.seed, self.seed + self.seeds)
        changes, names = self.changes or [], self.names or []
        if self._of_paper:
            return paper_variants(self.study, with_start(changes, self.start_from), seeds, names)
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
        return {name: list_pairs(name, root, needs_truth=True) for name, root in others.items()}

    def _print_plans(self) -> None:
        """Print the stages of each variant, and what all of them cost."""
        variants, roots = self._variants, self._roots  # what is wrong, before torch is imported

        from ..estimation.compute import choose_device
        from ..lab.variants import VariantFolder
        from ..training.chain_run import describe_chain, total_cost

        plans: list[dict[str, Any]] = []
        measured: dict[TrainConfig, Pace] = {}  # of stages, whatever the seed
        with joined(choose_device(self.device)) as processes:
            silent = self.quiet or not processes.is_first
            print_line = line_printer(silent=silent)
            for variant in variants:
                stages = VariantFolder(self.output, variant).stages()
                plan = describe_chain(stages, roots, processes, print_line, measured)
                plans.append({"variant": variant.name, "seed": variant.config.seed, **plan})
                if not (silent or self.as_json):
                    typer.echo(_title(variant))
                    print_plan(plan)
        total = total_cost(plans, processes)
        if self.as_json and processes.is_first:
            self.report({"study": self.study, "variants": plans, **total, "written": []})
        elif not silent:
            print_plan({"stages": [], **total}, "all variants")

    def _unfinished(self) -> "list[Variant]":
        from ..lab.variants import VariantFolder

        return [v for v in self._variants if VariantFolder(self.output, v).read() is None]

    def _train_stages(self, processes: "Processes") -> None:
        """Train the variants that are not finished in the stages of the paper."""
        from ..lab.ablation import conclude_stages
        from ..lab.variants import VariantFolder
        from ..training.chain_run import train_chain

        silent = self.quiet or not processes.is_first
        print_line = line_printer(silent=silent)
        unfinished = self._unfinished()
        processes.any(False)  # all have the same list: none has written a result yet
        for variant in unfinished:
            print_line(_title(variant))
            stages = [s for s in VariantFolder(self.output, variant).stages() if not s.finished]
            signal = train_chain(stages, self._roots, processes, print_line, quiet=silent)
            if signal is not None:
                print_line(STOPPED)
                raise typer.Exit(128 + signal)
            if processes.is_first:
                conclude_stages(variant, self.output, processes.device)

    def _train(self, processes: "Processes") -> None:
        """Train the variants that are not finished, each in one stage."""
        from ..lab.ablation import open_laboratory

        if processes.world_size > 1:
            raise InputError(
                "torchrun is for --protocol paper; the other one trains in one process"
            )
        unfinished = self._unfinished()
        if not unfinished:
            return
        self.output.mkdir(parents=True, exist_ok=True)
        how = (unfinished[0].config, self._roots, self.scenes or 64, processes.device)
        laboratory = open_laboratory(self.output, *how, quiet=self.quiet)
        print_line = line_printer(silent=self.quiet)
        for variant in unfinished:
            print_line(_title(variant))
            outcome = laboratory.train(variant)
            if not outcome.finished:
                typer.echo(STOPPED, err=True)
                raise typer.Exit(128 + (outcome.signal or 0))

    def _evaluate(self, variants: "Iterable[Variant]", data: str, pairs: "list[FlowPair]") -> None:
        from ..lab.ablation import evaluate_variant

        for variant in variants:
            tracked = self.track(pairs, f"{variant.name} on {data}")
            if not evaluate_variant(variant, self.output, data, pairs, self.device, tracked):
                folder = self.output / variant.folder
                missing = f"{variant.name} is not scored on {data}: no weights in {folder}"
                typer.echo(missing, err=True)

    def _write(self, report: "Report") -> None:
        from ..files import write_files

        write_files(report.contents)
        self.report_grids(report.document, report.contents, [report.grid])


def _title(variant: "Variant") -> str:
    return f"{variant.name}, seed {variant.config.seed}: {variant.folder}"
