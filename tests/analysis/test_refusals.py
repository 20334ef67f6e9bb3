"""What the functions of highrank_plugins.analysis refuse, and with which words."""

import math

import pytest
import torch

from highrank_plugins.analysis.components import (
    component_use,
    gate_sharpness,
    pointwise_curve,
    slope_statistics,
)
from highrank_plugins.analysis.divergence import (
    mean_pairwise_kld,
)
from highrank_plugins.analysis.predictions import (
    perplexity_by_band,
    target_ranks,
)
from highrank_plugins.analysis.retention import gradient_retention
from highrank_plugins.analysis.spectrum import (
    effective_rank,
    press_rank,
    spectral_decay,
    spectral_entropy,
    spectrum,
)
from highrank_plugins.analysis.statistics import (
    Summary,
    hedges_g,
    holm,
    paired_bleu,
    pearson,
    student_t,
    welch_t,
)
from highrank_plugins.analysis.unargmaxable_words import unargmaxable, unargmaxable_classes
from highrank_plugins.heads import build_head, build_pointwise, head_names
from highrank_plugins.measures.word_similarity import read_word_pairs, word_similarity
from tests.analysis.test_divergence import log_probs
from tests.analysis.test_predictions import COUNTS, LOG_PROBS, NLL, PROBS, TARGET
from tests.analysis.test_retention import random
from tests.analysis.test_spectrum import matrix
from tests.analysis.test_statistics import BAD, GOOD, REFERENCE
from tests.analysis.test_unargmaxable_words import CORNERS
from tests.measures.test_similarity import LENGTHS, VECTORS, WORDS, pairs

NAN, P = math.nan, log_probs(3, classes=20)


def changed(x, value, row=1, column=2):
    x = x.clone()
    x[row, column] = value
    return x


def gates(name, ends=(), tokens=2, **options):
    head = build_head(name, num_classes=9, feature_dim=5, embed_dim=3, **options)
    return gate_sharpness(head, torch.zeros(tokens, 5), ends)


def classes(name, **options):
    return unargmaxable_classes(build_head(name, num_classes=8, feature_dim=3, **options))


def rows(*calls):
    """Return rows with one message: the calls, then the message."""
    *calls, message = calls
    return [(call, message) for call in calls]


PRIORS_AND_GATES = [
    (lambda: component_use(torch.zeros(2, 3)), "log_prior, row 0: the probabilities sum to 3"),
    (lambda: gates("mos"), "needs gates per class, .* mos has none"),
    (lambda: gates("mixtape", components=1), "as a Mixtape with K > 1 has"),
    (lambda: gates("mixtape", (4,), frequent=4), r"within \(0, 4\), got \[4\]"),
    (lambda: gates("mixtape", (2, 1), frequent=4), r"within \(0, 4\)"),
    (lambda: gates("mixtape", tokens=0), "features is empty"),
    (lambda: slope_statistics(build_pointwise("sigsoftmax")), "plif; sigsoftmax has no slopes"),
    *rows(
        lambda: pointwise_curve(build_pointwise("identity"), 1, 1, 5),
        lambda: pointwise_curve(build_pointwise("identity"), 2, 1, 5),
        lambda: pointwise_curve(build_pointwise("identity"), 0, 1, 1),
        "expected low < high and at least two points",
    ),
]
DIVERGENCES = [
    (lambda: mean_pairwise_kld([P, changed(P, NAN)]), "block 1, row 1: entry 2 is nan"),
    (
        lambda: mean_pairwise_kld([P, P + math.log(22)]),
        "row 0: the probabilities sum to 22; pass log-prob",
    ),
    (lambda: mean_pairwise_kld([]), "no blocks"),
    (lambda: mean_pairwise_kld([P[:0]]), "no rows"),
]
PREDICTIONS = [
    (lambda: target_ranks(LOG_PROBS[0], TARGET), r"log_probs: expected .*\(4,\)"),
    (lambda: target_ranks(LOG_PROBS[:0], TARGET), "with n ≥ 1"),
    (lambda: target_ranks(LOG_PROBS, TARGET[:3]), r"target: expected class ids \[4\]"),
    (lambda: target_ranks(LOG_PROBS, TARGET.double()), "target: expected class ids"),
    (lambda: target_ranks(LOG_PROBS, TARGET - 1), r"ids must lie in \[0, 4\), got -1 to 2"),
    (lambda: target_ranks(LOG_PROBS, TARGET + 1), r"ids must lie in \[0, 4\), got 1 to 4"),
    (lambda: target_ranks(PROBS, TARGET), "row 0: the probabilities sum to"),
    (lambda: target_ranks(changed(LOG_PROBS, NAN), TARGET), "row 1: entry 2 is nan"),
    (lambda: perplexity_by_band(NLL, COUNTS[:2], ()), "two vectors of one length"),
    (lambda: perplexity_by_band(NLL[None], COUNTS[None], ()), "two vectors of one length"),
    (lambda: perplexity_by_band(NLL, COUNTS - 1, ()), "counts: token 0 has a negative count"),
    (lambda: perplexity_by_band(NLL * NAN, COUNTS, ()), "nll: token 0 is NaN"),
    (lambda: perplexity_by_band(NLL, COUNTS, (10, 10)), "bands: ends must increase"),
    (lambda: perplexity_by_band(NLL, COUNTS, (0, 10)), "bands: ends must increase"),
]
ONES = torch.ones(4)
SPECTRA = [
    *rows(
        *(lambda e=e: effective_rank(ONES, e) for e in (0.0, 1.0, -0.1, 2.0, NAN)),
        r"eps must lie in \(0, 1\)",
    ),
    *rows(
        *(lambda s=s: spectral_decay(ONES, *s) for s in ((0, 3), (3, 3), (1, 5))),
        "1 ≤ first < last ≤ 4",
    ),
    (lambda: spectral_decay(torch.tensor([1.0, 0.0])), "singular value 2 is 0"),
    (lambda: spectral_entropy(torch.zeros(3)), "all singular values are 0"),
    *rows(
        *(
            lambda measure=measure, bad=bad: measure(torch.tensor(bad))
            for bad in ([], [1.0, -1.0], [NAN], [[1.0]])
            for measure in (
                lambda s: press_rank(s, (9, 9), torch.float32),
                lambda s: effective_rank(s, 0.1),
                spectral_entropy,
                spectral_decay,
            )
        ),
        "singular_values: ",
    ),
    (
        lambda: press_rank(ONES, (2, 9), torch.float32),
        r"a matrix \(2, 9\) has 2 singular values, got 4",
    ),
    (lambda: press_rank(ONES, (9, 9), torch.int64), "dtype: expected a floating-point dtype"),
    *(
        (
            lambda bad=bad, method=method: spectrum(
                changed(matrix(), bad, 33, 4).split(10), method=method
            ),
            f"block 3, row 3: entry 4 is {bad}",
        )
        for bad in (NAN, math.inf, -math.inf)
        for method in ("tsqr", "gram")
    ),
    (lambda: spectrum([]), "no blocks"),
    (lambda: spectrum([torch.zeros(0, 3)]), "no rows"),
    (lambda: spectrum([torch.zeros(1, 3)]), "a single row always has rank 1"),
    (
        lambda: spectrum([torch.zeros(2, 3), torch.zeros(2, 4)]),
        "block 1 has 4 columns, .* have 3",
    ),
    (
        lambda: spectrum([torch.zeros(3)]),
        r"block 0: expected floats \[n, M\], got torch.float32 of shape \(3,\)",
    ),
    (lambda: spectrum([torch.zeros(2, 3).long()]), "block 0: expected floats .*int64"),
    (lambda: spectrum([[1.0]]), "block 0: expected floats .*list"),
    (lambda: spectrum([matrix()], torch.float16), "dtype: expected"),
    (lambda: spectrum([matrix()], method="qr"), "expected one of auto, tsqr, gram, got 'qr'"),
    (lambda: spectrum([matrix()], merge_rows=0), "merge_rows must be at least 1"),
]
W = random(5, 2)
LAYERS = [
    (lambda: gradient_retention(W, random(3, 4)), r"weight \[M, d\].*\(5, 2\) and \(3, 4\)"),
    (lambda: gradient_retention(W, random(5)), r"got \(5, 2\) and \(5,\)"),
    (lambda: gradient_retention(W / 0, random(3, 5)), "not finite"),
    (lambda: gradient_retention(W, random(3, 5) * NAN), "not finite"),
    (lambda: gradient_retention(W, torch.zeros(3, 5)), "zero everywhere"),
    (
        lambda: word_similarity(VECTORS[:4], WORDS, pairs(1, 2, 3, 4)),
        "'e' is row 4, but there are 4 vectors",
    ),
    (
        lambda: word_similarity(VECTORS * (LENGTHS > 0.5), WORDS, pairs(1, 2, 3, 4)),
        r"the vector of 'c' has norm 0\.0",
    ),
    (
        lambda: word_similarity(VECTORS + LENGTHS.where(LENGTHS < 5, NAN), WORDS, pairs(1, 2)),
        "the vector of 'b' has norm nan",
    ),
    (lambda: unargmaxable(CORNERS[0]), r"weight: expected \[M, d\] with M ≥ 2"),
    (lambda: unargmaxable(CORNERS[:1]), r"weight: expected \[M, d\] with M ≥ 2"),
    (lambda: unargmaxable(CORNERS, torch.zeros(3)), r"bias: expected \[4\], got \(3,\)"),
    (lambda: unargmaxable(CORNERS * NAN), "not finite"),
    (lambda: unargmaxable(CORNERS, torch.full((4,), -math.inf)), "not finite"),
    (lambda: unargmaxable(CORNERS, bound=0.0), "bound must be a number above 0"),
    (lambda: unargmaxable(CORNERS, bound=NAN), "bound must be a number above 0"),
    (lambda: classes("softmax", pointwise="multimax"), "not applicable to softmax.*must increase"),
    *(
        (lambda name=name: classes(name), f"not applicable to {name}")
        for name in sorted({*head_names()} - {"softmax"})
    ),
]
STATISTICS = [
    *(
        (lambda test=test, a=a: test(a, [1.0, 1.0]), message)
        for test in (student_t, welch_t, hedges_g)
        for a, message in (
            ([1.0], "at least two runs of each system, got 1"),
            (Summary(1.0, 0.1, 1), "expected a summary of at least two runs"),
            (Summary(1.0, -0.1, 3), "expected a summary"),
            ([1.0, NAN], "a run is not a finite number"),
            ([2.0, 2.0], "both systems have a standard deviation of 0"),
        )
    ),
    *rows(
        *(lambda p=p: holm([0.5, p]) for p in (-0.1, 1.1, NAN)), r"p-values must lie in \[0, 1\]"
    ),
    (lambda: pearson([1, 2], [1, 2]), "three pairs or more, got 2 and 2"),
    (lambda: pearson([1, 2, 3], [1, 2]), "got 3 and 2"),
    (lambda: pearson([1, 1, 1], [1, 2, 3]), "a measure is constant"),
    (lambda: pearson([1, 2, 3], [2, 2, 2]), "a measure is constant"),
    (lambda: pearson([1, 2, NAN], [1, 2, 3]), "NaN or infinite"),
    (lambda: paired_bleu({"a": BAD}, [REFERENCE]), "a baseline and a system"),
    (lambda: paired_bleu({"a": BAD, "b": GOOD[1:]}, [REFERENCE]), "'system b': 59"),
    (lambda: paired_bleu({"a": BAD, "b": GOOD}, [REFERENCE[1:]]), "'reference 0': 59"),
    (lambda: paired_bleu({"a": BAD, "b": GOOD}, []), "same number of lines"),
    (
        lambda: paired_bleu({"a": BAD, "b": GOOD}, [REFERENCE], "bs"),
        "expected one of bootstrap, randomisation",
    ),
]


@pytest.mark.parametrize(
    ("call", "message"),
    [*PRIORS_AND_GATES, *DIVERGENCES, *PREDICTIONS, *SPECTRA, *LAYERS, *STATISTICS],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((line, r":2: expected two words and a number, got '")
          for line in ("car bus", "car bus tram", "car bus 1 2", "word1,word2,3")),
        (None, ": the file has no word pairs"),
    ],
)  # fmt: skip
def test_a_bad_file_of_pairs_is_refused(tmp_path, line, message):
    path = tmp_path / "pairs.txt"
    path.write_text("" if line is None else f"sun sunlight 50\n{line}\n")
    with pytest.raises(ValueError, match=rf"pairs\.txt{message}"):
        read_word_pairs(path)
