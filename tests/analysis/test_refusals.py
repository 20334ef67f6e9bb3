"""What the functions of highrank_plugins.analysis refuse, and with which words."""

import math
from functools import partial

import pytest
import torch

from highrank_plugins.analysis import components, spectrum, statistics
from highrank_plugins.analysis.divergence import mean_pairwise_kld
from highrank_plugins.analysis.predictions import perplexity_by_band, target_ranks
from highrank_plugins.analysis.retention import gradient_retention
from highrank_plugins.analysis.unargmaxable_words import unargmaxable, unargmaxable_classes
from highrank_plugins.heads import build_head, head_names
from highrank_plugins.measures.word_similarity import read_word_pairs, word_similarity
from tests.analysis.test_predictions import COUNTS, LOG_PROBS, NLL, TARGET, log_probs
from tests.analysis.test_spectrum import random
from tests.analysis.test_statistics import BAD, GOOD, REFERENCE
from tests.analysis.test_unargmaxable_words import CORNERS
from tests.measures.test_every_measure import LENGTHS, ROWS, VECTORS, pairs

NAN, F32 = math.nan, torch.float32
P, ONES, W = log_probs(3, classes=20), torch.ones(4), random(5, 2)


def changed(x, value, row=1, column=2):
    x = x.clone()
    x[row, column] = value
    return x


def gates(ends):
    head = build_head("mixtape", num_classes=9, feature_dim=5, embed_dim=3, frequent=4)
    return components.gate_sharpness(head, torch.zeros(2, 5), ends)


def classes(name, **options):
    return unargmaxable_classes(build_head(name, num_classes=8, feature_dim=3, **options))


similarity, bleu = partial(word_similarity, rows=ROWS), statistics.paired_bleu
# the message, the function and its arguments
REFUSALS = [
    ("log_prior, row 0: the probabilities sum to 3", components.component_use, torch.zeros(2, 3)),
    (r"within \(0, 4\)", gates, (2, 1)),
    ("row 1: entry 2 is nan", target_ranks, changed(LOG_PROBS, NAN), TARGET),
    ("a token is NaN, or has a neg", perplexity_by_band, NLL * NAN, COUNTS, ()),
    ("singular value 2 is 0", spectrum.spectral_decay, torch.tensor([1.0, 0.0])),
    ("no rows", spectrum.spectrum, [torch.zeros(0, 3)]),
    ("not finite", gradient_retention, W, random(3, 5) * NAN),
    ("not finite", unargmaxable, CORNERS * NAN),
    ("a measure is constant", statistics.pearson, [1, 1, 1], [1, 2, 3]),
    ("block 1, row 1: entry 2 is nan", mean_pairwise_kld, [P, changed(P, NAN)]),
    ("bands: ends must increase", perplexity_by_band, NLL, COUNTS, (0, 10)),
    *((r"eps must lie in \(0, 1\)", spectrum.effective_rank, ONES, e) for e in (0.0, 1, 2, NAN)),
    *(
        ("singular_values: ", function, torch.tensor(bad), *more)
        for bad in ([], [1.0, -1.0], [NAN])
        for function, *more in (
            (spectrum.press_rank, (9, 9), F32),
            (spectrum.effective_rank, 0.1),
            (spectrum.spectral_entropy,),
            (spectrum.spectral_decay,),
        )
    ),
    ("all singular values are 0", spectrum.spectral_entropy, torch.zeros(3)),
    ("a single row always has rank 1", spectrum.spectrum, [torch.zeros(1, 3)]),
    ("three pairs or more, got 2", statistics.pearson, [1, 2], [1, 2]),
    ("zero everywhere", gradient_retention, W, torch.zeros(3, 5)),
    *(
        (message, partial(similarity, pairs=pairs(1, 2, 3, 4)), vectors)
        for message, vectors in (
            (r"the vector of 'c' has norm 0\.0", VECTORS * (LENGTHS > 0.5)),
            ("the vector of 'b' has norm nan", VECTORS + LENGTHS.where(LENGTHS < 5, NAN)),
        )
    ),
    ("not finite", unargmaxable, CORNERS, torch.full((4,), -math.inf)),
    ("softmax.*must increase", partial(classes, pointwise="multimax"), "softmax"),
    *((f"not applicable to {of}", classes, of) for of in sorted({*head_names()} - {"softmax"})),
    *(
        (message, test, a, [1.0, 1.0])
        for test in (statistics.student_t, statistics.welch_t, statistics.hedges_g)
        for a, message in (
            ([1.0], "at least two runs of each system, got 1"),
            (statistics.Summary(1.0, 0.1, 1), "expected a summary of at least two runs"),
            (statistics.Summary(1.0, -0.1, 3), "expected a summary"),
            ([1.0, NAN], "a run is not a finite number"),
            ([2.0, 2.0], "both systems have a standard deviation of 0"),
        )
    ),
    ("NaN or infinite", statistics.pearson, [1, 2, NAN], [1, 2, 3]),
    ("'system b': 59", bleu, {"a": BAD, "b": GOOD[1:]}, [REFERENCE]),
]


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row[0][:40])
def test_bad_input_is_refused(row):
    message, function, *arguments = row
    with pytest.raises(ValueError, match=message):
        function(*arguments)


@pytest.mark.parametrize(
    "line", ["car bus", "car bus nan", "car bus inf", "car bus 1 2", "word1,word2,3", None]
)
def test_a_bad_file_of_pairs_is_refused(tmp_path, line):
    path, message = tmp_path / "pairs.txt", r":2: expected two words and a number, got '"
    path.write_text("" if line is None else f"sun sunlight 50\n{line}\n")
    with pytest.raises(ValueError, match=rf"pairs\.txt{message if line else ': the file has no'}"):
        read_word_pairs(path)
