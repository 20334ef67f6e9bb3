"""Every registered measure, on every layer and on layers that the package does not have."""

import inspect
import json
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from highrank_plugins.analysis.divergence import Estimate
from highrank_plugins.analysis.unargmaxable_words import reach
from highrank_plugins.cli.analyse import TextSettings
from highrank_plugins.cli.measure import options_of, run
from highrank_plugins.common.files import plain
from highrank_plugins.common.formatting import Bars, Lines
from highrank_plugins.measures import all_measures, context_dependence, find_measure
from highrank_plugins.measures.base import Block, TextMeasure, Words
from highrank_plugins.measures.context_dependence import ContextDependenceMeasure
from highrank_plugins.measures.reach import ReachMeasure
from highrank_plugins.measures.word_similarity import read_word_pairs, word_similarity
from highrank_plugins.models.head_monitor import take_snapshot
from tests.heads.cases import MIXTAPE, MOC, MOS, SOFTMAX, Case, make_features
from tests.heads.toys import toys  # noqa: F401  (a fixture)

TOKENS, CLASSES = 24, 9
TEXT = [
    name
    for name, kind in all_measures().items()
    if issubclass(kind, TextMeasure) and not kind.needs_other
]
CASES = [SOFTMAX, MOC, MOS, MIXTAPE, SOFTMAX.with_pointwise("plif", knots=20)]
OF_TOYS = [Case("residual"), Case("residual", "bend"), MOS.with_pointwise("bend")]


pytestmark = pytest.mark.usefixtures("toys")


def words_of(case: Case) -> Words:
    options = {"embed_dim": 4} if case.head == "residual" else {}
    dictionary = Dictionary()
    for index in range(CLASSES - len(dictionary)):
        dictionary.add_symbol(f"word{index}", n=100 - index)
    return Words(case.build(classes=CLASSES, **options).eval(), dictionary)


def blocks_of(words: Words, sizes: list[int]) -> list[Block]:
    features = make_features(TOKENS)
    target = torch.arange(TOKENS) * 5 % CLASSES
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    parts = zip(features.split(sizes), target.split(sizes), starts, strict=True)
    return [Block(words.head, own, some, start) for own, some, start in parts]


def observed(name: str, words: Words, *shares: list[int]):
    """Return the measure and its result, of blocks of these sizes in each process."""
    blocks, parts = iter(blocks_of(words, [size for share in shares for size in share])), []
    for share in shares:
        measure = find_measure(name).for_card(words)
        measure.start(words, torch.float64)
        for _ in share:
            measure.observe(next(blocks))
        parts.append(measure.part())
    return measure, measure.merge(parts)


@pytest.mark.parametrize("case", [*CASES, *OF_TOYS], ids=str)
@pytest.mark.parametrize("name", [*TEXT, "saturation", "unargmaxable"])
def test_every_measure_runs(name, case):
    words = words_of(case)
    if name in TEXT:
        measure, whole = observed(name, words, [TOKENS])
        _, parts = observed(name, words, [5], [1], [11, 7])
        assert flat(plain(parts)) == pytest.approx(flat(plain(whole)), rel=1e-6, abs=1e-6)
    else:
        measure = find_measure(name).for_card(words)
        whole = measure.measure(words)
    check_shown(measure, whole)
    if name == "components":
        found = take_snapshot(words.head, make_features(TOKENS), torch.arange(TOKENS) % CLASSES)
        assert {"spectral_entropy", "gradient_retention"} <= found.keys()
        assert ("component_entropy" in found) == (case.head in ("moc", "mos", "mixtape"))


@pytest.mark.parametrize("case", [SOFTMAX, MOS, MIXTAPE], ids=str)
def test_the_use_of_slopes_is_that_of_the_logits(case):
    case = case.with_pointwise("plif", knots=4000, bound=2.0)
    first = words_of(case).head
    with torch.no_grad():
        first.pointwise.slope_logits.neg_()
    words = replace(words_of(case), first=lambda: first)
    f, inputs = words.head.pointwise, []
    (block,) = blocks_of(words, [TOKENS])
    apply_to = f.apply_to
    f.apply_to = lambda z, tensors: inputs.append(z) or apply_to(z, tensors)
    nll = -words.head.log_probs(block.features).gather(-1, block.target.unsqueeze(-1))
    del f.apply_to
    measure, found = observed("components", words, [9], [15])
    z = torch.cat([z.flatten() for z in inputs])
    cells = ((z + 2) / f.cell_width).clamp(0, 3999).long().unique()
    use = found.slope_use
    assert use.visited == len(cells) / 4000 and 0 < use.visited < 1
    assert use.ppl == pytest.approx(nll.mean().exp().item(), rel=1e-9)
    assert use.ppl_untrained != pytest.approx(use.ppl, rel=1e-3)
    with torch.no_grad():
        f.slope_logits.copy_(first.pointwise.slope_logits)
    same = observed("components", words, [TOKENS])[1].slope_use
    assert same.ppl == same.ppl_untrained == pytest.approx(use.ppl_untrained, rel=1e-9)
    assert "cells visited" in dict(measure.rows(found))


def check_shown(measure, result):
    """Check that what people see of a result is whole."""
    found = json.loads(json.dumps(plain(result), allow_nan=False))
    assert set(measure.hidden) <= found.keys()
    rows = measure.rows(result)
    assert all(isinstance(text, str) and text for row in rows for text in row)
    assert not rows or (measure.title and measure.about)
    for figure in measure.figures(result):
        assert isinstance(figure, Lines | Bars) and figure.title
    scores = measure.scores(found, "test")
    assert all(score.signature for score in scores.values())


def flat(value, place=""):
    """Return numbers and words of a result by their places, except for what names single blocks."""
    if not isinstance(value, dict | list):
        return {place: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    parts = [(name, part) for name, part in parts if name not in ("batches", "first")]
    found = [flat(part, f"{place}.{name}") for name, part in parts]
    return {place: value for part in found for place, value in part.items()}


def test_options_have_types_and_errors_name_them():
    types, taken = {}, {*inspect.signature(run).parameters, *TextSettings.model_fields}
    for kind in all_measures().values():
        for name, parameter in options_of(kind).items():
            found, _ = get_args(parameter.annotation)  # and its help
            assert name not in taken and types.setdefault(name, found) == found
    words = words_of(SOFTMAX.with_pointwise("plif", knots=20))
    with torch.no_grad():
        next(words.head.pointwise.parameters())[0] = torch.nan
    with pytest.raises(ValueError, match="pointwise function has parameters that are not finite"):
        find_measure("components")().start(words)


# -- cosines against people's scores ---------------------------------------------------------------

# angles of 0, 10, 25, 45 and 90 degrees: the cosine with "a" falls
ROWS = {word: row for row, word in enumerate("abcde")}
ANGLES = torch.tensor([0.0, 10, 25, 45, 90], dtype=torch.float64).deg2rad()
LENGTHS = torch.tensor([[1.0], [7.0], [0.1], [3.0], [2.0]])
VECTORS = LENGTHS * torch.stack([ANGLES.cos(), ANGLES.sin()], 1)


def pairs(*scores):
    return [("a", word, score) for word, score in zip([*ROWS][1:], scores, strict=False)]


def test_spearman_of_cosines_and_scores():
    for scores, expected in (
        ((9, 8, 2, 1), 1), ((1, 2, 8, 9), -1),
        # ranks 4 3 2 1 against 4 2 3 1: 1 − 6 · 2 / (4 · 15)
        ((9, 2, 8, 1), 0.8),
        # ties have the mean of their ranks: Pearson's r of 4 3 2 1 and 4 2.5 2.5 1
        ((9, 5, 5, 1), 4.5 / math.sqrt(5 * 4.5)),
    ):  # fmt: skip
        found = word_similarity(VECTORS, ROWS, pairs(*scores))
        assert found == (pytest.approx(expected), 4, 0), scores
    # words are lower-cased, and missing ones are counted
    some = [("A", "B", 9), ("a", "C", 8), ("a", "z", 1), ("y", "z", 2)]
    assert word_similarity(VECTORS, ROWS, some) == (pytest.approx(1.0), 2, 2)
    rows = {"e": 4, "d": 3, "c": 2, "a": 0}
    assert word_similarity(VECTORS, rows, pairs(9, 8, 2, 1)) == (pytest.approx(1.0), 3, 1)
    for chosen in ([], pairs(1), pairs(3, 3, 3), [("a", "b", 1), ("a", "b", 2)]):  # equal ranks
        assert word_similarity(VECTORS, ROWS, chosen) == (None, len(chosen), 0)


def test_files_of_every_layout_are_read(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_bytes(
        b"\xef\xbb\xbfcar\tautomobile\t3.92\r\nsun sunlight 50.0\n\nkitchen toilet 2.5\t\n"
    )
    assert read_word_pairs(path) == [
        ("car", "automobile", 3.92), ("sun", "sunlight", 50.0), ("kitchen", "toilet", 2.5),
    ]  # fmt: skip


# -- measures that compare contexts of two models: dependence on earlier words, and reach --

TARGET = torch.tensor([4, 5, 4, 2, 4, 5, 6, 5, 4, 2, 7, 5, 4, 5, 2, 4, 4, 6, 5, 4, 2, 4, 8, 4])


def observe(words, features, target=TARGET, kind=ContextDependenceMeasure, **options):
    """Return the measure and its parts, in blocks of three tokens."""
    measure = kind(**options)
    measure.start(words, torch.float64)
    for at in range(0, len(target), 3):
        some = slice(at, at + 3)
        measure.observe(Block(words.head, features[some], target[some], at))
    return measure, [measure.part()]


def by_pairs(log_probs, preceding, inside):
    """Return the mean over contexts of the mean divergence from the others with their word."""
    means = []
    for i in range(len(preceding)):
        others = [j for j in range(len(preceding)) if preceding[j] == preceding[i] and j != i]
        if others and inside[i]:
            gaps = [np.exp(log_probs[i]) @ (log_probs[i] - log_probs[j]) for j in others]
            means.append(np.mean(gaps))
    return np.mean(means) if means else None


@pytest.mark.parametrize("case", [SOFTMAX, MOS, MIXTAPE], ids=str)
@pytest.mark.parametrize("numbers", [1, 2 * CLASSES, 2**22])
def test_a_plain_formula_agrees(case, numbers, monkeypatch):
    monkeypatch.setattr(context_dependence, "NUMBERS", numbers)
    words, features = words_of(case), make_features(len(TARGET))
    measure, parts = observe(words, features, bands=(2, 5))
    found = measure.merge(parts)
    log_probs = words.head.log_probs(features).double().detach().numpy()
    preceding = [words.dictionary.eos(), *TARGET[:-1].tolist()]
    times = np.array([preceding.count(one) for one in preceding])
    assert found.dependence == pytest.approx(by_pairs(log_probs, preceding, times > 0), rel=1e-6)
    assert (found.contexts, found.repeated) == (len(TARGET), int((times > 1).sum()))
    for band, (low, high) in zip(found.bands, [(1, 2), (2, 5), (5, 99)], strict=True):
        inside = (low <= times) & (times < high)
        expected = by_pairs(log_probs, preceding, inside)
        assert band.dependence == (None if expected is None else pytest.approx(expected, rel=1e-6))
        assert band.contexts == inside.sum()
        assert band.words == len({p for p, there in zip(preceding, inside, strict=True) if there})
    assert found.bands[0].dependence is None and found.bands[2].high is None
    assert found.gain is None and found.other is None


def test_two_checkpoints_are_compared_by_preceding_word():
    features = make_features(len(TARGET))
    a, b = words_of(SOFTMAX), words_of(MOS)
    b.dictionary.__dict__.update(a.dictionary.__dict__)
    (one, own), (two, its) = (observe(words, features, bands=(2, 5)) for words in (a, b))
    found, back = one.compare(own, two, its), two.compare(its, one, own)
    nll = [-w.head.log_probs(features)[range(len(TARGET)), TARGET].double() for w in (a, b)]
    assert found.gain == pytest.approx(Estimate.of((nll[1] - nll[0]).detach()))
    assert back.gain.mean == pytest.approx(-found.gain.mean)
    assert found.other == pytest.approx(two.merge(its).dependence)
    assert found.dependence == pytest.approx(one.merge(own).dependence)
    preceding = torch.cat([torch.tensor([a.dictionary.eos()]), TARGET[:-1]])
    often = torch.tensor([(preceding == p).sum() >= 5 for p in preceding])
    assert found.bands[2].gain == pytest.approx(Estimate.of((nll[1] - nll[0]).detach()[often]))
    assert all(band.gain or band.contexts < 2 for band in found.bands)
    # a model of word pairs has no dependence, until one context reads more
    of_pairs = make_features(CLASSES)[preceding]
    measure, parts = observe(a, of_pairs)
    assert measure.merge(parts).dependence == pytest.approx(0, abs=1e-12)
    of_pairs[5] += 1
    measure, parts = observe(a, of_pairs)
    assert measure.merge(parts).dependence > 1e-3


FEATURES = make_features(24)


def compared(first, second, **options):
    second.dictionary.__dict__.update(first.dictionary.__dict__)
    options["kind"] = ReachMeasure
    one, own = observe(first, -FEATURES.flip(0), **options)  # read by no one
    two, its = observe(second, FEATURES, **options)
    return one, one.compare(own, two, its)


@pytest.mark.parametrize("teacher", [SOFTMAX, MOC], ids=str)
def test_the_words_are_those_of_the_other_model(teacher):
    words, other = words_of(SOFTMAX), words_of(teacher)
    words.head.weight.data[:, 2:] = 0  # in two dimensions few words can be on top
    measure, found = compared(words, other, contexts=6, most=5)
    expected = []
    for i in range(0, 24, 4):
        levels, order = other.head.log_probs(FEATURES[i]).detach().topk(5)
        parts = words.head.weight.detach(), words.head.bias
        expected.append(reach(*parts, order.tolist(), levels))
    assert list(zip(found.sets, found.probabilities, strict=True)) == expected
    assert (found.contexts, found.most, min(found.sets) < 5) == (6, 5, True)
    assert found.mean_sets == pytest.approx(sum(found.sets) / 6)
    assert found.mean_probabilities == pytest.approx(sum(found.probabilities) / 6)
    assert sum(measure.figures(found)[0].groups[""].values()) == 6
    assert plain(found)["sets"] == found.sets


@pytest.mark.parametrize("pointwise", ["sigsoftmax", "plif"])
def test_a_model_reaches_its_own_words(pointwise):
    words = words_of(SOFTMAX.with_pointwise(pointwise))
    _, found = compared(words, words, contexts=99)
    assert found.sets == [CLASSES - 1] * 24 and found.probabilities is None
    assert found.mean_probabilities is None and found.mean_sets == CLASSES - 1


def test_what_cannot_be_compared_is_refused():
    for options in ({"contexts": 0}, {"most": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            ReachMeasure(**options)
    with pytest.raises(ValueError, match=r"not applicable to mos: .* as --other"):
        compared(words_of(MOS), words_of(SOFTMAX))
    words, features = words_of(SOFTMAX), make_features(len(TARGET))
    (one, own), (two, its) = observe(words, features), observe(words, features, TARGET.flip(0))
    with pytest.raises(ValueError, match="read different contexts of the split"):
        one.compare(own, two, its)
    words.head.weight.data[3, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="diverged"):
        one.merge(own)
