"""common/patching.py: what is replaced can still be scripted; what is deferred still works."""

import subprocess
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


PROGRAM = """
import importlib.util
import sys
from highrank_plugins.common.patching import import_fairseq
class Library:
    # looks for scikit-learn while fairseq is imported, as a library that fairseq imports may
    def find_spec(self, name, path=None, target=None):
        if name == "fairseq.tasks":
            assert importlib.util.find_spec("sklearn") is not None
            print("looked")
sys.meta_path.insert(0, Library())
import_fairseq()
assert not {"sklearn", "sklearn.metrics", "scipy.stats"} & sys.modules.keys()
import numpy as np
from fairseq.criterions import sentence_prediction as criterion
from fairseq.tasks import audio_classification as task
labels, guesses = np.array([1, 0, 1, 1]), np.array([1, 0, 0, 1])
assert abs(criterion.acc_and_f1(guesses, labels)["f1"] - 0.8) < 1e-9
assert abs(criterion.pearson_and_spearman(guesses, labels)["pearson"] - 0.5773502692) < 1e-9
assert task.sklearn_metrics.roc_curve(labels, guesses)[0][-1] == 1
import sklearn.metrics, scipy.stats
assert type(sklearn.metrics).__name__ == "module" and scipy.stats.norm.cdf(0) == 0.5
"""


def test_statistics_are_imported_when_they_are_used():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "looked\n", done.stderr
