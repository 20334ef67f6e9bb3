"""common/patching.py: what is replaced can still be scripted."""

import sys
import types

import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

import highrank_plugins
from highrank_plugins.common.patching import replaces
from tests.models.small import build


def test_a_stock_generator_can_be_scripted(mt_data):
    highrank_plugins.register()
    assert hasattr(EnsembleModel.forward_decoder, "highrank_patch")
    built = build(mt_data, "transformer_tiny", "--criterion", "cross_entropy")
    dictionary, sample = built.task.target_dictionary, built.batch()
    generator = SequenceGenerator([built.model.eval()], dictionary, beam_size=2, max_len_b=5)
    want = generator.generate([built.model], sample)
    found = torch.jit.script(generator)({"net_input": sample["net_input"]})
    for ours, theirs in zip(found, want, strict=True):
        assert ours[0]["tokens"].equal(theirs[0]["tokens"])


def test_a_running_script_gets_the_replacement_of_its_module(monkeypatch, tmp_path):
    modules = [types.ModuleType(name) for name in ("fairseq_cli.toy", "__main__", "other")]
    for module, name in zip(modules, ("toy.py", "toy.py", "other.py"), strict=True):
        module.__file__ = str(tmp_path / name)
        exec("def main(): return 'stock'\ndef command(): return main()", vars(module))
    owner, script, other = modules
    monkeypatch.setitem(sys.modules, "__main__", script)
    replaces(owner, "main")(lambda stock: f"ours of {stock()}")
    replaces(other, "main")(lambda stock: "not theirs")
    assert owner.command() == script.command() == "ours of stock"
