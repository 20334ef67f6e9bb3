"""Training runs with relative positions: resumed, used, started from a checkpoint without them."""

import pytest
import torch

from highrank_plugins.models.warm_start import fill_new_tables
from highrank_plugins.trunks import RelativeAttention
from tests.fairseq_cli import attempt, run
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION, last, parameters, same, train

ARCH = "transformer_mos_tiny"
RELATIVE = ["--rel-pos-clip", 4, "--no-token-positional-embeddings"]
GENERATION = ["--batch-size", 8, "--num-workers", 0, "--beam", 2]


@pytest.fixture(scope="module")
def without_tables(mt_data, tmp_path_factory):
    """Write a checkpoint without relative positions."""
    folder = tmp_path_factory.mktemp("without")
    train(mt_data, folder, ARCH, 4)
    return last(folder)


@pytest.mark.long
def test_a_resumed_run_equals_an_uninterrupted_one_and_translates(mt_data, tmp_path):
    train(mt_data, tmp_path / "whole", ARCH, 12, *RELATIVE)
    train(mt_data, tmp_path / "parts", ARCH, 6, *RELATIVE)
    train(mt_data, tmp_path / "parts", ARCH, 12, *RELATIVE)
    assert same(parameters(last(tmp_path / "whole")), parameters(last(tmp_path / "parts")))
    done = run("generate", mt_data, "--path", last(tmp_path / "whole"), *GENERATION)
    assert len(done.lines("H-")) == 20


def test_a_checkpoint_without_tables_starts_with_zeros_and_says_so(
    mt_data, without_tables, tmp_path
):
    start = ["--finetune-from-model", without_tables, "--lr", 0, "--rel-pos-clip", 4]
    done = train(mt_data, tmp_path, ARCH, 1, *start)
    old, new = parameters(without_tables), parameters(last(tmp_path))
    assert same({name: new[name] for name in old}, old)
    added = sorted(new.keys() - old.keys())
    assert len(added) == 4
    assert all(not new[name].any() and name in done.output for name in added)


def test_a_model_with_untrained_tables_does_not_translate(mt_data, without_tables):
    overrides = ["--model-overrides", "{'rel_pos_clip': 4}"]
    done = attempt("generate", mt_data, "--path", without_tables, *GENERATION, *overrides)
    assert done.code == 2
    assert "decoder.layers.0.self_attn.relative.key_table" in done.output
    assert not done.lines("H-")


def test_a_run_without_tables_refuses_a_checkpoint_with_tables(mt_data, tmp_path):
    train(mt_data, tmp_path / "old", ARCH, 1, "--rel-pos-clip", 4)
    words = ["--arch", ARCH, "--save-dir", tmp_path / "new", *OUR_LOSS, *TRANSLATION, *NARROW]
    start = ["--finetune-from-model", last(tmp_path / "old")]
    done = attempt("train", mt_data, *words, *start)
    assert done.code == 2
    assert "has relative positions; use --rel-pos-clip" in done.output.splitlines()[-1]


def model_of(clip, *sides, layers=1):
    """Return modules named as those of a Transformer."""
    named = {}
    for side in sides:
        attentions = torch.nn.ModuleList(torch.nn.Module() for _ in range(layers))
        for attention in attentions:
            attention.relative = RelativeAttention(4, clip)
        named[side] = attentions
    return torch.nn.ModuleDict(named)


def test_the_tables_of_one_side_may_be_new():
    state = model_of(2, "encoder").state_dict()
    assert fill_new_tables(state, model_of(2, "encoder", "decoder")) == [
        "decoder.0.relative.key_table",
        "decoder.0.relative.value_table",
    ]


def test_pruned_layers_are_not_an_error():
    state = model_of(2, "decoder", layers=3).state_dict()
    assert not fill_new_tables(state, model_of(2, "decoder"))
    assert len(state) == 6


def test_other_clip_distances_are_refused():
    with pytest.raises(ValueError, match=r"\(5, 4\) in the checkpoint, \(7, 4\) in the model"):
        fill_new_tables(model_of(2, "decoder").state_dict(), model_of(3, "decoder"))
