"""fairseq is imported without scikit-learn and scipy.stats, which work when they are used."""

import subprocess
import sys

PROGRAM = """
import importlib.util
import sys
from highrank_plugins.common.patching import defer_statistics
defer_statistics()
defer_statistics()
class Library:
    # looks for scikit-learn while fairseq is imported, as a library that fairseq imports may
    def find_spec(self, name, path=None, target=None):
        if name == "fairseq.tasks":
            print(importlib.util.find_spec("sklearn") is not None)
sys.meta_path.insert(0, Library())
import fairseq
print(sorted({"sklearn", "sklearn.metrics", "scipy.stats"} & sys.modules.keys()))
import numpy as np
from fairseq.criterions import sentence_prediction as criterion
from fairseq.tasks import audio_classification as task
labels, guesses = np.array([1, 0, 1, 1]), np.array([1, 0, 0, 1])
print(criterion.acc_and_f1(guesses, labels)["f1"])
print(criterion.pearson_and_spearman(guesses, labels)["pearson"])
print(task.sklearn_metrics.roc_curve(labels, guesses)[0][-1])
import sklearn.metrics, scipy.stats
print(type(sklearn.metrics).__name__, scipy.stats.norm.cdf(0))
print(sum("quick_import" in type(finder).__module__ for finder in sys.meta_path))
"""


def test_statistics_are_imported_when_they_are_used():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, before, f1, pearson, rate, module, finders = done.stdout.splitlines()
    assert found == "True"
    assert before == "[]"
    assert abs(float(f1) - 0.8) < 1e-9
    assert abs(float(pearson) - 0.5773502692) < 1e-9
    assert float(rate) == 1.0
    assert module == "module 0.5"
    assert finders == "0"
