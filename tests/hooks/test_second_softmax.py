"""Test hooks/second_softmax.py."""

from argparse import Namespace

import pytest
import torch
from fairseq.models import FairseqDecoder
from fairseq.sequence_generator import EnsembleModel

from highrank_plugins.hooks.second_softmax import undivided
from tests.models.small import build

HEADS = ["softmax", "mos", "mixtape", "plif"]


@pytest.fixture
def normalised(monkeypatch) -> list[torch.Tensor]:
    """Record what fairseq has normalised."""
    seen = []
    stock = FairseqDecoder.get_normalized_probs

    def get_normalized_probs(decoder, net_output, *more):
        seen.append(net_output[0].clone())
        return stock(decoder, net_output, *more)

    monkeypatch.setattr(FairseqDecoder, "get_normalized_probs", get_normalized_probs)
    return seen


def translate(built, models=None, **options) -> list[dict]:
    """Return all hypotheses of a batch."""
    search = Namespace(beam=3, max_len_a=0, max_len_b=8, **options)
    models = models or [built.model.eval()]
    generator = built.task.build_generator(models, search)
    hypotheses = built.task.inference_step(generator, models, built.batch())
    return [h for sentence in hypotheses for h in sentence]


def assert_same(ours: list[dict], theirs: list[dict]) -> None:
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert a["tokens"].tolist() == b["tokens"].tolist()
        torch.testing.assert_close(a["positional_scores"], b["positional_scores"])


@pytest.mark.parametrize("head", HEADS)
def test_hypotheses_are_the_same_without_a_second_softmax(head, mt_data, stock, normalised):
    built = build(mt_data, f"transformer_{head}_tiny")
    ours = translate(built)
    assert not normalised
    stock(EnsembleModel, "forward_decoder")
    assert_same(ours, translate(built))
    assert normalised


def test_an_ensemble_with_a_stock_model_is_normalised(mt_data, stock, normalised):
    """One model of ours and one of fairseq's, which needs its only log_softmax."""
    built = build(mt_data, "transformer_mos_tiny")
    other = build(mt_data, "transformer", "--criterion", "cross_entropy").model.eval()
    models = [built.model.eval(), other]
    ours = translate(built, models)
    steps = len(normalised)
    assert steps > 0
    stock(EnsembleModel, "forward_decoder")
    assert_same(ours, translate(built, models))
    assert len(normalised) == 3 * steps


def test_a_temperature_needs_the_second_softmax(mt_data, stock, normalised):
    built = build(mt_data, "transformer_mixtape_tiny")
    ours = translate(built, temperature=0.5)
    for divided in normalised:
        assert (divided.exp().sum(-1) < 0.9).all()
    assert normalised
    stock(EnsembleModel, "forward_decoder")
    assert_same(ours, translate(built, temperature=0.5))


def test_the_mark_is_removed_after_the_step(mt_data):
    model = build(mt_data, "transformer_mos_tiny").model
    with pytest.raises(KeyboardInterrupt), undivided([model, object()]):
        assert model.as_returned
        raise KeyboardInterrupt
    assert not model.as_returned
