"""Inference reuses tensors prepared from the parameters, but never after a change of these."""

import copy
import pickle

import pytest
import torch

from tests.heads.cases import MIXTAPE, SOFTMAX, make_features

CASES = [
    SOFTMAX.with_pointwise("plif", knots=9, bound=3.0),
    MIXTAPE.with_options(gate_weight_norm=1.5),
]


def count_tensors(head):
    calls = []
    original = head.pointwise.tensors

    class Counting(type(head.pointwise)):
        def tensors(self):
            calls.append(1)
            return original()

    Counting.__module__ = type(head.pointwise).__module__  # the head prepares ours alone
    head.pointwise.__class__ = Counting
    return calls


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tensors_are_prepared_once_for_many_steps(case):
    head, features = case.build(), make_features(3)
    calls = count_tensors(head)
    with torch.no_grad():
        first = head(features)
        for _ in range(3):
            assert torch.equal(head(features), first)
    assert len(calls) == 1


@pytest.mark.parametrize("change", ["in place", "load_state_dict", "dtype", "data and eval()"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_prepared_tensors_are_never_stale(case, change):
    head, other, features = case.build(), case.build(seed=5), make_features(3)
    with torch.no_grad():
        before = head(features)
        if change == "in place":
            for mine, theirs in zip(head.parameters(), other.parameters(), strict=True):
                mine.copy_(theirs)
        elif change == "load_state_dict":
            head.load_state_dict(other.state_dict())
        elif change == "dtype":
            head, other, features = head.float(), other.float(), features.float()
            head.load_state_dict(other.state_dict())
        else:
            for mine, theirs in zip(head.parameters(), other.parameters(), strict=True):
                mine.data.copy_(theirs.data)
            head.eval()
        got = head(features)
        assert torch.equal(got, other(features))
        assert not torch.allclose(got, before.to(got.dtype))


def test_another_number_of_a_function_is_seen():
    head, features = CASES[0].build(), make_features(3)
    with torch.no_grad():
        before = head(features)
        head.pointwise.bound = 2.0
        assert not torch.allclose(head(features), before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_not_lost_after_inference(case):
    head, features = case.build(), make_features(3)
    with torch.inference_mode():
        head(features)
    head(features).sum().backward()
    assert all(p.grad is not None for p in head.parameters())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_copies_and_pickles_compute_the_same(case):
    head, features = case.build(), make_features(3)
    with torch.no_grad():
        want = head(features)
        for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
            assert torch.equal(other(features), want)
