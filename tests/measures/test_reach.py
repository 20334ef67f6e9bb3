"""The measure `reach`: which model's words are asked of which layer, and what is refused."""

import pytest
import torch

from highrank_plugins.analysis.unargmaxable_words import reach
from highrank_plugins.common.files import plain
from highrank_plugins.measures.base import Block
from highrank_plugins.measures.reach import ReachMeasure
from tests.heads.cases import MOC, MOS, SOFTMAX, make_features
from tests.measures.test_every_measure import CLASSES, words_of

TARGET = torch.arange(24) * 5 % CLASSES
FEATURES = make_features(24)


def observed(words, features, **options):
    measure = ReachMeasure(**options)
    measure.start(words)
    measure.observe(Block(words.head, features[:10], TARGET[:10], 0))
    measure.observe(Block(words.head, features[10:], TARGET[10:], 10))
    return measure, [measure.part()]


def compared(first, second, **options):
    second.dictionary.__dict__.update(first.dictionary.__dict__)
    one, own = observed(first, -FEATURES.flip(0), **options)  # read by no one
    two, its = observed(second, FEATURES, **options)
    return one, one.compare(own, two, its)


@pytest.mark.parametrize("teacher", [SOFTMAX, MOS, MOC], ids=str)
@pytest.mark.parametrize("bound", [None, 0.5])
def test_the_words_are_those_of_the_other_model(teacher, bound):
    words, other = words_of(SOFTMAX), words_of(teacher)
    words.head.weight.data[:, 2:] = 0  # in two dimensions few words can be on top
    measure, found = compared(words, other, contexts=6, most=5, bound=bound)
    expected = []
    for i in range(0, 24, 4):
        levels, order = other.head.log_probs(FEATURES[i]).detach().topk(5)
        parts = words.head.weight.detach(), words.head.bias
        expected.append(reach(*parts, order.tolist(), levels, bound))
    assert list(zip(found.sets, found.probabilities, strict=True)) == expected
    assert (found.contexts, found.most) == (6, 5)
    assert found.mean_sets == pytest.approx(sum(found.sets) / 6)
    assert found.mean_probabilities == pytest.approx(sum(found.probabilities) / 6)
    assert sum(measure.figures(found)[0].groups[""].values()) == 6
    assert min(found.sets) < 5
    assert plain(found)["sets"] == found.sets


@pytest.mark.parametrize("pointwise", ["sigsoftmax", "plif"])
def test_a_model_reaches_its_own_words(pointwise):
    words = words_of(SOFTMAX.with_pointwise(pointwise))
    _, found = compared(words, words, contexts=99)
    assert found.sets == [CLASSES - 1] * 24 and found.probabilities is None
    assert found.mean_probabilities is None and found.mean_sets == CLASSES - 1


def test_mixtures_are_refused_by_name():
    with pytest.raises(ValueError, match=r"not applicable to mos: .* as --other"):
        compared(words_of(MOS), words_of(SOFTMAX))


@pytest.mark.parametrize("options", [{"contexts": 0}, {"most": 0}])
def test_numbers_below_one_are_refused(options):
    with pytest.raises(ValueError, match="must be at least 1"):
        ReachMeasure(**options)
