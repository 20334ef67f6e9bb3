"""common/patching.py: what is replaced can still be scripted."""

import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

import highrank_plugins
from tests.models.small import build


def test_a_stock_generator_is_scripted(mt_data):
    highrank_plugins.register()
    assert hasattr(EnsembleModel.forward_decoder, "highrank_patch")
    built = build(mt_data, "transformer_tiny", "--criterion", "cross_entropy")
    dictionary, sample = built.task.target_dictionary, built.batch()
    generator = SequenceGenerator([built.model.eval()], dictionary, beam_size=2, max_len_b=5)
    want = generator.generate([built.model], sample)
    found = torch.jit.script(generator)({"net_input": sample["net_input"]})
    for ours, theirs in zip(found, want, strict=True):
        assert ours[0]["tokens"].equal(theirs[0]["tokens"])
