"""A vocabulary matrix that is a function of others, in fairseq: tied, averaged, measured."""

import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.measures.base import in_float64
from highrank_plugins.measures.unargmaxable import UnargmaxableMeasure
from tests.fairseq_cli import run
from tests.trainings import last, parameters, same, train

TIED = "--share-decoder-input-output-embed"


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("transformer_lm_centred", []),
        ("transformer_lm_unit", ["--head-unit-by-class"]),
        ("transformer_lm_mos", ["--head-vocabulary", "centred"]),
        ("transformer_unit", []),
    ],
)
def test_a_tied_matrix_is_read_again(arch, options, lm_data, mt_data, tmp_path):
    data, words = lm_data if "_lm_" in arch else mt_data, [TIED, *options]
    train(data, tmp_path / "whole", arch, 4, *words)
    for updates in (2, 4):
        train(data, tmp_path / "parts", arch, updates, *words)
    found = parameters(last(tmp_path / "parts"))
    assert same(found, parameters(last(tmp_path / "whole")))
    embedding = found["decoder.embed_tokens.weight"]
    assert torch.equal(
        embedding, found["decoder.output_projection.parametrizations.weight.original"]
    )
    if "_lm_" in arch:
        run("eval-lm", data, "--path", last(tmp_path / "parts"), "--tokens-per-sample", 32)


def test_averages_copy_the_codes_of_a_codebook(lm_data, tmp_path):
    train(lm_data, tmp_path, "transformer_lm_codebook", 3, "--store-ema", "--ema-decay", "0.5")
    state = torch.load(last(tmp_path), weights_only=False)  # written by this test
    codes = [name for name in state["model"] if name.endswith("codes")]
    averages = state["extra_state"]["ema"]
    assert codes and all(torch.equal(averages[n], state["model"][n]) for n in codes)
    moved = "decoder.embed_tokens.weight"
    assert not torch.equal(averages[moved], state["model"][moved])


def test_the_rank_of_a_product_is_that_of_its_factors():
    """Measure factors of rank 4, whose product in float32 has a higher rank by rounding."""
    torch.manual_seed(0)
    options = {"num_classes": 40, "feature_dim": 64, "bias": False}
    head = build_head("softmax", vocabulary="low_rank", rank=4, **options)
    tall = head.parametrizations.weight.original0.detach().double()
    narrow = options | {"feature_dim": 4, "weight": torch.nn.Parameter(tall)}
    want = UnargmaxableMeasure().measure(words_of(build_head("softmax", **narrow).double()))
    found = UnargmaxableMeasure().measure(words_of(head))
    assert want.count > 0 and found.classes == want.classes
    assert torch.linalg.matrix_rank(in_float64(head).weight) == 4


def words_of(head):
    class Words:
        def word(self, index):
            return str(index)

    words = Words()
    words.head = head
    return words
