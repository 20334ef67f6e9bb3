"""Test whether a difference in BLEU is more than chance, by sacreBLEU's own paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TESTS = {"bootstrap": "bs", "randomisation": "ar"}  # our names, sacreBLEU's


@dataclass(frozen=True)
class PairedScore:
    """Hold a system's score and the p-value of its difference from the baseline, which has None."""

    system: str
    score: float
    p_value: float | None


@dataclass(frozen=True)
class PairedScores:
    """Hold the scores, baseline first, and sacreBLEU's signature with its seed and samples."""

    scores: list[PairedScore]
    signature: str


def paired_bleu(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    test: str = "bootstrap",
    samples: int = 0,
    metric: Any = None,
) -> PairedScores:
    """Test each system against the first one, in pairs, by `sacrebleu.significance`.

    The null hypothesis is that a system and the baseline are one; lines that are the same as the
    baseline's have p = 1, where sacreBLEU's count of greater differences would give 1 / samples.
    "bootstrap" is Koehn's 2004 (1,000 samples), "randomisation" Riezler and Maxwell's 2005
    approximate randomisation (10,000 trials). The environment's SACREBLEU_SEED is the seed.

    Args:
        systems: name → hypotheses; the first is the baseline.
        references: one list of sentences per reference.
        samples: 0 takes sacreBLEU's default.
        metric: a sacreBLEU metric, default BLEU().
    Raises:
        ValueError: fewer than two systems, an unknown test, lists of different lengths.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    _check(systems, references, test)
    named = [(name, list(lines)) for name, lines in systems.items()]
    signatures, table = PairedTest(
        named,
        {"score": metric or BLEU()},
        [list(lines) for lines in references],
        test_type=TESTS[test],
        n_samples=samples,
    )()
    ((name, signature),) = signatures.items()
    scores = []
    for (system, lines), result in zip(named, table[name], strict=True):
        same = result.p_value is not None and lines == named[0][1]
        scores.append(PairedScore(system, float(result.score), 1.0 if same else result.p_value))
    return PairedScores(scores, str(signature))


def _check(
    systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]], test: str
) -> None:
    if test not in TESTS:
        raise ValueError(f"test: expected one of {', '.join(TESTS)}, got {test!r}")
    if len(systems) < 2:
        raise ValueError(f"a paired test needs a baseline and a system, got {list(systems)}")
    lengths = {f"system {name}": len(lines) for name, lines in systems.items()}
    lengths |= {f"reference {i}": len(lines) for i, lines in enumerate(references)}
    if len(set(lengths.values())) != 1 or not references:
        raise ValueError(f"systems and references must have the same number of lines: {lengths}")
