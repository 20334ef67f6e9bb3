"""Measures that compare contexts of two models: dependence on earlier words, and reach."""

import numpy as np
import pytest
import torch

from highrank_plugins.analysis.divergence import Estimate
from highrank_plugins.analysis.unargmaxable_words import reach
from highrank_plugins.common.files import plain
from highrank_plugins.measures import context_dependence
from highrank_plugins.measures.base import Block
from highrank_plugins.measures.context_dependence import ContextDependenceMeasure
from highrank_plugins.measures.reach import ReachMeasure
from tests.heads.cases import MIXTAPE, MOC, MOS, SOFTMAX, make_features
from tests.measures.test_every_measure import CLASSES, words_of

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
