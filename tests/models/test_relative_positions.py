"""--rel-pos-clip: which self-attentions it changes, and that decoding agrees with training."""

import pytest
import torch
from fairseq.modules import MultiheadAttention

from highrank_plugins.models.relative_positions import RelativeSelfAttention
from highrank_plugins.models.warm_start import fill_new_tables
from highrank_plugins.trunks import RelativeAttention
from tests.models.small import assert_scores_of_one_pass, build, gradients
from tests.trainings import last, parameters, same, train

CLIP = ["--rel-pos-clip", 3]
RELATIVE = [*CLIP, "--no-token-positional-embeddings"]
TABLES = ("key_table", "value_table")
MT, LM = "transformer_mixtape_tiny", "transformer_lm_mos"


def tables(*sides):
    return {f"{side}.layers.0.self_attn.relative.{name}" for side in sides for name in TABLES}


def added(model, stock):
    """Return the names of new parameters; all others must have stock's values."""
    new, old = model.state_dict(), stock.state_dict()
    assert same({name: new[name] for name in old}, old)
    return new.keys() - old.keys()


def empty_tables(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(TABLES):
                parameter.zero_()
    return model


@pytest.mark.parametrize(
    ("arch", "words", "sides"),
    [
        (MT, CLIP, ("encoder", "decoder")),
        (MT, [*CLIP, "--rel-pos-in", "encoder"], ("encoder",)),
        (MT, [*CLIP, "--rel-pos-in", "decoder"], ("decoder",)),
        (LM, CLIP, ("decoder",)),
        (MT, ["--rel-pos-clip", 0], ()),
        (LM, ["--rel-pos-clip", 0], ()),
    ],
    ids=str,
)
def test_only_tables_are_added(arch, words, sides, mt_data, lm_data):
    data = lm_data if "_lm_" in arch else mt_data
    model = build(data, arch, *words).model
    assert added(model, build(data, arch).model) == tables(*sides)
    attentions = [m for m in model.modules() if isinstance(m, RelativeSelfAttention)]
    assert [m.relative.clip for m in attentions] == [3] * len(sides)
    if arch == MT:
        assert type(model.decoder.layers[0].encoder_attn) is MultiheadAttention


def test_layers_that_training_drops_have_tables_too(mt_data):
    words = """--encoder-layers 3 --decoder-layers 3 --encoder-layerdrop 0.9
        --decoder-layerdrop 0.9""".split()
    model = build(mt_data, MT, *CLIP, *words).model
    assert sum(isinstance(m, RelativeSelfAttention) for m in model.modules()) == 6


@pytest.mark.parametrize("arch", [MT, LM])
def test_tables_of_zeros_change_nothing(arch, mt_data, lm_data):
    data = lm_data if "_lm_" in arch else mt_data
    built = build(data, arch)
    inputs = built.batch()["net_input"]
    want, _ = built.model.eval()(**inputs)
    got, _ = empty_tables(build(data, arch, *CLIP).model).eval()(**inputs)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_padding_changes_nothing(mt_data):
    built = build(mt_data, MT, *RELATIVE)
    model, sample = built.model.eval(), built.batch()
    together, _ = model(**sample["net_input"])
    data = built.task.dataset("valid")
    lengths = sample["target"].ne(built.task.target_dictionary.pad()).sum(1).tolist()
    assert len(set(lengths)) > 1
    for row, number in enumerate(sample["id"].tolist()):
        alone, _ = model(**data.collater([data[number]])["net_input"])
        torch.testing.assert_close(together[row, : lengths[row]], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
def test_padding_targets_on_the_left_does_not_change_the_loss(half, mt_data):
    losses = []
    for words in (RELATIVE, [*RELATIVE, "--left-pad-target"]):
        built = build(mt_data, MT, *words)
        model = built.model.eval().half() if half else built.model.eval()
        loss, *_ = built.criterion(model, built.batch())
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if half else 1e-6)


@pytest.mark.parametrize("words", [RELATIVE, CLIP, [*CLIP, "--rel-pos-in", "decoder"]], ids=str)
def test_hypotheses_have_the_scores_of_teacher_forcing(words, mt_data):
    built = build(mt_data, MT, *words)
    assert_scores_of_one_pass(built, built.batch())


def test_steps_of_a_language_model_equal_its_forward_pass(lm_data):
    model = build(lm_data, LM, *RELATIVE).model.eval()
    tokens = torch.randint(4, 20, (3, 9))
    want, _ = model(tokens)
    state = {}
    steps = [model.decoder(tokens[:, : t + 1], incremental_state=state)[0] for t in range(9)]
    torch.testing.assert_close(torch.cat(steps, 1), want, rtol=0, atol=1e-5)


def test_attention_weights_are_returned_as_by_stock(mt_data):
    stock = build(mt_data, MT).model.encoder.layers[0].self_attn.eval()
    ours = empty_tables(build(mt_data, MT, *CLIP).model).encoder.layers[0].self_attn.eval()
    x = torch.randn(5, 2, 32)
    padding = torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
    for needed in (False, True):
        want = stock(x, x, x, key_padding_mask=padding, need_weights=needed)
        got = ours(x, x, x, key_padding_mask=padding, need_weights=needed)
        torch.testing.assert_close(got, want)


def test_padding_among_earlier_steps_stays_hidden(mt_data):
    stock = build(mt_data, MT).model.decoder.layers[0].self_attn.eval()
    ours = empty_tables(build(mt_data, MT, *CLIP).model).decoder.layers[0].self_attn.eval()
    states = {}, {}
    for padding in (None, torch.tensor([[False], [True]]), None):
        x = torch.randn(1, 2, 32)
        want, got = (
            attention(x, x, x, key_padding_mask=padding, incremental_state=state)
            for attention, state in zip((stock, ours), states, strict=True)
        )
        torch.testing.assert_close(got, want)
    weights = got[1]
    assert weights[1, 0, 1] == 0 < weights[0, 0, 1]


def test_checkpointed_activations_change_no_gradient(mt_data):
    found = []
    for words in (RELATIVE, [*RELATIVE, "--checkpoint-activations"]):
        built = build(mt_data, MT, *words)
        found.append(gradients(built, built.batch()))
    assert all(found[0][name].any() for name in tables("encoder", "decoder"))
    torch.testing.assert_close(*found)


# -- checkpoints ----------------------------------------------------------------------------------

ARCH = "transformer_mos_tiny"
GENERATION = ["--batch-size", 8, "--num-workers", 0, "--beam", 2]


@pytest.fixture(scope="module")
def without_tables(mt_data, tmp_path_factory):
    """Write a checkpoint without relative positions."""
    folder = tmp_path_factory.mktemp("without")
    train(mt_data, folder, ARCH, 4)
    return last(folder)


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


def model_of(clip, *sides, layers=1):
    """Return modules named as those of a Transformer."""

    def attention():
        return torch.nn.ModuleDict({"relative": RelativeAttention(4, clip)})

    named = {side: torch.nn.ModuleList(attention() for _ in range(layers)) for side in sides}
    return torch.nn.ModuleDict(named)


def test_the_tables_of_one_side_may_be_new_and_layers_pruned():
    state = model_of(2, "encoder").state_dict()
    new = [f"decoder.0.relative.{name}" for name in TABLES]
    assert fill_new_tables(state, model_of(2, "encoder", "decoder")) == new
    state = model_of(2, "decoder", layers=3).state_dict()
    assert not fill_new_tables(state, model_of(2, "decoder"))
    assert len(state) == 6


@pytest.mark.parametrize(
    ("clip", "side", "message"),
    [
        (3, "decoder", r"\(5, 4\) in the checkpoint, \(7, 4\) in the model"),
        (2, "encoder", "the checkpoint has relative positions; use --rel-pos-clip"),
    ],
)
def test_tables_of_another_model_are_refused(clip, side, message):
    with pytest.raises(ValueError, match=message):
        fill_new_tables(model_of(2, "decoder").state_dict(), model_of(clip, side))
