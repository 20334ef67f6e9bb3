"""What a loaded checkpoint says of its training run."""

import pytest
import torch

from highrank_plugins.inference.loading import load_model
from highrank_plugins.measures.base import Block
from highrank_plugins.measures.components import ComponentMeasure
from tests.inference.checkpoints import write_checkpoint
from tests.tasks.built import build


def test_the_first_slopes_are_those_that_the_seed_draws(stream_data, tmp_path):
    built = build(stream_data, "--head-pointwise", "plif", "--seed", 7)
    first = built.model.head.pointwise.slope_logits.detach().clone()
    # its weights are others than the model was built with
    loaded = load_model(write_checkpoint(tmp_path / "a.pt", built), str(stream_data))
    state = torch.get_rng_state()
    assert torch.equal(loaded.first_head().pointwise.slope_logits, first)
    assert torch.equal(torch.get_rng_state(), state)
    measure = ComponentMeasure()
    measure.start(loaded.words)
    features = torch.randn(6, loaded.head.embed_dim)
    measure.observe(Block(loaded.head, features, torch.arange(6), first=0))
    use = measure.merge([measure.part()]).slope_use
    moved = loaded.head.pointwise.slope_logits.exp().log1p() - first.exp().log1p()
    assert use.moved == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-5)
    assert use.ppl != use.ppl_untrained
