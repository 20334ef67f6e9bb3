"""The model of a whole training step counts trunk, layer, loss, and update."""

import pytest
from click.testing import CliRunner

from highrank_plugins.benchmarks.case import ModelCase, changed
from highrank_plugins.cli import as_command
from scripts.roofline import GPUS, Gpu
from scripts.whole_step import estimate_step, whole_step

# one product operation a second; everything else takes no time
PRODUCTS_ONLY = Gpu("products", 1e30, 1 / 0.7, 1e30)
SHAPE = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
    "--decoder-attention-heads 2"
)
CASE = ModelCase(classes=64, sentences=4, length=6, shape=SHAPE)
SOFTMAX = "transformer_softmax --head-loss fused"


def test_more_classes_add_the_products_of_the_layer():
    small, large = (
        estimate_step(SOFTMAX, changed(CASE, {"classes": classes}), PRODUCTS_ONLY).products
        for classes in (64, 128)
    )
    assert large - small == pytest.approx(6 * CASE.work() * 16 * 64, rel=0.01)


def test_the_update_of_adam_moves_every_parameter():
    """Adam reads weight, gradient and two averages, and writes three of them."""
    memory_only = Gpu("memory", 1 / 0.875, 1e30, 1e30)
    small, large = (
        estimate_step(SOFTMAX, changed(CASE, {"classes": classes}), memory_only).others
        for classes in (64, 64_064)
    )
    added = 64_000 * 16 * 2  # bytes of the new rows of the embeddings, which are the layer's, too
    assert large - small > 7 * added


@pytest.mark.triton
def test_more_separate_gates_add_products_to_the_step():
    found = [
        estimate_step(f"transformer_mixtape --head-frequent-ratio {r} --head-loss triton", CASE,
                      GPUS["a100"]).products
        for r in (0.1, 0.5)
    ]  # fmt: skip
    assert found[0] < found[1]


def run(*words):
    return CliRunner().invoke(as_command(whole_step), words)


def test_the_command_prints_a_row_for_each_model():
    found = run("ui_strings_en_de", "--impl", "fused", "--gpu", "rtx4090")
    assert found.exit_code == 0
    rows = found.output.splitlines()
    assert len(rows) == 2 + 5
    assert "| `transformer_softmax` |" in rows[3] and rows[3].endswith("| 1.00 |")


def test_a_given_model_replaces_the_presets():
    found = run("ui_strings_en_de", "--impl", "fused", "--model", "transformer_moc")
    assert [line.split("`")[1] for line in found.output.splitlines()[2:]] == [
        "transformer", "transformer_softmax", "transformer_moc",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ptb"], "only translators can be modelled"),
        (["wmt_en_de", "--impl", "naive"], "takes one of chunked, fused, triton"),
        (["wmt_en_de", "--tokens", "5"], "No such option: --tokens"),
        (["wmt_en_de", "--gpu", "h2000"], "--gpu h2000 does not exist; did you mean 'h200'?"),
        (
            ["ui_strings_en_de", "--impl", "fused", "--model", "transformer_moss"],
            "transformer_moss",
        ),
        (["nothing"], ": preset nothing does not exist"),
        (
            ["wmt_en_de", "--model", "transformer_mixtape --head-loss fused"],
            "give the loss as --impl, not as --head-loss",
        ),
    ],
)
def test_a_mistake_is_explained(words, message):
    found = run(*words)
    assert found.exit_code == 2 and message in found.output
