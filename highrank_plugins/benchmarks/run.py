"""Run a benchmark from its options to its table; each measurement has a process of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from multiprocessing import get_context
from typing import Any

from highrank_plugins.benchmarks import case as cases
from highrank_plugins.benchmarks import measuring
from highrank_plugins.benchmarks.case import BenchSettings, Case, CaseError, LossCase, ModelCase
from highrank_plugins.benchmarks.measuring import MeasurementFailed, OutOfMemory
from highrank_plugins.benchmarks.rows import Row, table, write_csv
from highrank_plugins.common.patching import keep_freed_memory
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.common.user_error import UserError

STEP = 64  # batches of a loss are multiples of this; finer differences are noise
MOST = 2**17
# what a step, or the code of a layer, may raise
_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError,
    NameError, OSError, RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class Benchmark:
    """Measure implementations of cases, print each, and write them to a CSV file."""

    kind: str  # of `case.KINDS`
    settings: BenchSettings
    echo: Callable[[str], None]

    def run(self, subjects: Iterable[tuple[str, Case, list[str], str]]) -> int:
        """Print a table of cases with their implementations and baseline; count what failed."""
        rows: list[Row] = []
        failed, csv = 0, self.settings.csv
        if csv is not None and (csv.is_dir() or not csv.resolve().parent.is_dir()):
            raise CaseError(f"--csv {csv}: name a file in a folder that exists")
        for name, case, implementations, baseline in subjects:
            own = None
            try:
                if isinstance(case, ModelCase):  # the floor has the batch of each loss
                    own = self._sized(name, case, baseline)
            except MeasurementFailed as error:
                failed += 1
                self.echo(f"{name}: {baseline} failed: {error}")
                continue
            for tried in implementations:
                try:
                    row = self._row((name, tried, baseline), case, own)
                except MeasurementFailed as error:
                    failed += 1
                    self.echo(f"{name}: {tried} failed: {error}")
                    continue
                rows.append(row)
                time = f"{row.milliseconds:,.1f} ms, {row.over_baseline:.2f} × {row.baseline}"
                self.echo(f"{row.case}: {row.implementation} {time}")
                if csv is not None:  # at once: the next row may take an hour
                    write_csv(rows, csv)
        if not rows:
            raise CaseError("nothing could be measured; see the reasons above")
        self.echo(f"\n{rows[0].machine}\n\n{table(rows)}")
        return failed

    def _row(self, names: tuple[str, str, str], case: Case, baseline_case: Case | None) -> Row:
        name, implementation, baseline = names
        sized = self._sized(name, case, implementation)
        found = measure(
            self.kind, sized, implementation, self.settings.repeats, self.settings.threads,
            baseline=baseline, baseline_case=baseline_case,
        )  # fmt: skip
        return Row.of(names, sized.work(), found)

    def _sized(self, name: str, case: Case, implementation: str) -> Case:
        if self.settings.within is None:
            return case
        return largest_batch(
            self.kind, case, implementation, self.settings.within * 2**20, self.settings.threads,
            lambda text: self.echo(f"{name}: {text}"),
        )  # fmt: skip


def run_losses(
    names: list[str],
    implementations: list[str],
    changes: dict[str, Any],
    grid: dict[str, list[int]],
    benchmark: Benchmark,
) -> int:
    """Measure every case with every implementation that can do it; return how many failed."""
    found = loss_cases(names, changes, grid)
    from highrank_plugins.benchmarks.implementations import IMPLEMENTATIONS, available

    cases.refuse_unknown("--impl", implementations, IMPLEMENTATIONS)

    def subjects() -> Iterable[tuple[str, Case, list[str], str]]:
        for name, case in found.items():
            reasons = {each: available(each, case) for each in implementations}
            for each, reason in reasons.items():
                if reason is not None:
                    benchmark.echo(f"{name}: {each} skipped ({reason})")
            able = [each for each, reason in reasons.items() if reason is None]
            yield name, case, able, "gemm_floor"

    return benchmark.run(subjects())


def run_models(
    names: list[str], models: list[str] | None, changes: dict[str, Any], benchmark: Benchmark
) -> int:
    """Measure training steps or beam search of each model; return how many failed."""
    return benchmark.run(
        (name, case, models or list(case.models), case.baseline)
        for name, case in _cases(benchmark.kind, names, changes).items()
        if isinstance(case, ModelCase)
    )


def loss_cases(
    names: list[str], changes: dict[str, Any], grid: Mapping[str, list[int]]
) -> dict[str, LossCase]:
    """Return checked losses, one for every combination of sizes in a grid."""
    from highrank_plugins.heads import head_options

    result, found = {}, _cases("loss", names, changes)
    heads = {case.head for case in found.values() if isinstance(case, LossCase)}
    if "components" in grid and not any("components" in head_options(head) for head in heads):
        raise CaseError(f"--components: {', '.join(sorted(heads))} has none; leave it out")
    for name, case in found.items():
        for values in itertools.product(*grid.values()):
            sizes = dict(zip(grid, values, strict=True))
            words = "".join(f" {key}={value}" for key, value in sizes.items())
            result[f"{name}{words}"] = cases.changed(case, sizes)
    return {name: case for name, case in result.items() if isinstance(case, LossCase)}


def _cases(kind: str, names: list[str], changes: dict[str, Any]) -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name in names:
        found |= {n: cases.changed(case, changes) for n, case in cases.named(kind, name).items()}
    return found


def measure(
    kind: str,
    case: Case,
    implementation: str,
    repeats: int,
    threads: int,
    *,
    baseline: str | None = None,
    baseline_case: Case | None = None,
) -> dict[str, Any]:
    """Return what `measured` finds in a new process; `baseline_case` may have another batch."""
    given = kind, case, implementation, repeats, threads, baseline, baseline_case or case
    with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as pool:
        try:
            return pool.submit(_reported, *given).result()
        except BrokenProcessPool:
            raise OutOfMemory("the process was killed, perhaps for lack of memory") from None


def largest_batch(
    kind: str,
    case: Case,
    implementation: str,
    limit: int,
    threads: int,
    say: Callable[[str], object],
) -> Any:
    """Return `case` with the largest batch that fits into `limit` bytes; `say` what is tried."""
    field, step = ("tokens", STEP) if isinstance(case, LossCase) else ("sentences", 1)
    most = MOST // (case.work() // getattr(case, field))

    def fits(steps: int) -> bool:
        try:
            sized = cases.changed(case, {field: steps * step})
            memory = measure(kind, sized, implementation, 0, threads)["memory"]
            found = memory is not None and memory <= limit
        except OutOfMemory:
            found = False
        say(f"{implementation}: {steps * step:,} {field} {'fit' if found else 'do not fit'}")
        return found

    if not fits(1):
        smallest = "64 tokens" if field == "tokens" else "one sentence or stream"
        raise MeasurementFailed(
            f"--within: {limit // 2**20} MiB is too little for {smallest} of "
            f"{implementation}; raise the limit"
        )
    good, bad = 1, 2
    while bad * step <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most // step + 1)
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return cases.changed(case, {field: good * step})


# -- in the process of a measurement --


def _reported(*given: Any) -> dict[str, Any]:
    """Return what `measured` finds, or raise its error's last line, which the parent can read."""
    kind = MeasurementFailed
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        try:
            return measured(*given)
        except SystemExit:  # fairseq's parser has said why
            why = said.getvalue()
        except _ERRORS as error:
            why = f"{'' if isinstance(error, UserError) else f'{type(error).__name__}: '}{error}"
            of_torch = isinstance(error, RuntimeError) and "memory" in str(error)
            kind = OutOfMemory if of_torch or isinstance(error, MemoryError) else kind
    raise kind(why.strip().splitlines()[-1])


def measured(
    kind: str, case: Case, implementation: str, repeats: int, threads: int, baseline: str | None,
    baseline_case: Case,
) -> dict[str, Any]:  # fmt: skip
    """Return seconds of implementation and baseline (if any), and the former's peak in bytes."""
    import torch

    measuring.use(case.device, threads)
    # exclude what libraries allocate in a first step (7 to 20 MiB for products alone)
    _step(kind, implementation, case)()
    measuring.return_free_memory()
    subject = _step(kind, implementation, case)
    result: dict[str, Any] = {
        "memory": measuring.peak_memory(subject, case.device),
        "threads": torch.get_num_threads(),
        "machine": measuring.machine(case),
    }
    keep_freed_memory()  # as training does; holes would count as memory of the step
    if repeats:
        steps = [subject] if baseline is None else [subject, _step(kind, baseline, baseline_case)]
        timings, *others = measuring.alternate(steps, case.device, repeats)
        result["seconds"], result["processor_seconds"] = zip(*timings, strict=True)
        if others:  # scale the baseline to the work of the subject
            scale = case.work() / baseline_case.work()
            result["baseline_seconds"] = [scale * timing.seconds for timing in others[0]]
    return result


def _step(kind: str, implementation: str, case: Case) -> measuring.Step:
    if isinstance(case, LossCase):
        from highrank_plugins.benchmarks.implementations import loss_step

        if case.user_dir is not None:
            cases.import_user_dir(case.user_dir)
        return loss_step(implementation, case)
    from highrank_plugins.benchmarks.models import model_step

    return model_step(kind, implementation, case)
