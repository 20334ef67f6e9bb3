"""A head in one module of your own gets architectures and options, and trains."""

import os
import subprocess
import sys

from tests.fairseq_cli import REPOSITORY
from tests.tiny_corpus import unigram_entropy, valid_losses
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION

TOY = '''
from torch import nn

from highrank_plugins.heads import register_head
from highrank_plugins.heads.base import Head, widen


@register_head("scaled")
class Scaled(Head):
    """log_softmax(s W g), with s learned from a start value."""

    def __init__(self, num_classes, feature_dim, embed_dim=None, weight=None, bias=True,
                 pointwise="identity", start: float = 1.0):
        super().__init__(num_classes, feature_dim, embed_dim, weight, bias, pointwise)
        self.scale = nn.Parameter(self.weight.new_tensor(start))

    def chunk_log_probs(self, features, tensors, random_state):
        logits = tensors["scale"] * nn.functional.linear(features, tensors["weight"])
        return widen(logits).log_softmax(-1)
'''
MAIN = """
import toy, highrank_plugins
from fairseq_cli.train import cli_main

highrank_plugins.register()
cli_main()
"""


def test_a_users_head_trains_and_generates(mt_data, tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    line = [
        *(sys.executable, "-c", MAIN, mt_data, "--save-dir", tmp_path / "checkpoints"),
        *("--user-dir", REPOSITORY / "highrank_plugins", "--arch", "transformer_scaled_tiny"),
        *("--max-update", 30, "--head-start", "0.5", *TRANSLATION, *NARROW, *OUR_LOSS),
    ]
    paths = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = subprocess.run(
        [str(word) for word in line],
        env=os.environ | {"PYTHONPATH": paths, "LOGLEVEL": "DEBUG"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "'head_start': 0.5" in done.stdout
    assert valid_losses(done.stdout + done.stderr)[-1] < unigram_entropy(mt_data / "dict.de.txt")
