"""Test values and state of the AWD-LSTM, its dropped matrices, and each rate: training only."""

import numpy as np
import pytest
import torch

from highrank_plugins.heads.random_state import dropout_mask
from highrank_plugins.trunks import AWDLSTM, Rates
from highrank_plugins.trunks.awd_lstm import WeightDropLSTM, embed_words

RATES = {"dropout": 0.4, "dropouti": 0.4, "dropouth": 0.25, "dropoute": 0.3, "wdrop": 0.5,
         "embed_noise": 0.15}  # fmt: skip
WORDS, STEPS, STREAMS = 11, 6, 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_lstm(layer, x, h, c, recurrent=None):
    """Return outputs [T, B, H] and the last h, c [B, H] of x [T, B, I] by the equations."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().numpy() for p in layer.parameters())
    w_hh = w_hh if recurrent is None else recurrent.detach().numpy()
    outputs = []
    for step in x:
        i, f, g, o = np.split(step @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs), h, c


def trunk(dtype=torch.float64, **rates):
    torch.manual_seed(1)
    made = AWDLSTM(WORDS, embed_dim=4, hidden_size=5, layers=3, last_hidden_size=7, **rates)
    for parameter in made.parameters():  # away from the small initial values
        torch.nn.init.normal_(parameter, std=0.7)
    return made.to(dtype)


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(2)
    return torch.randint(WORDS, (STEPS, STREAMS), generator=generator)


def seeded(model, tokens, seed=5):
    torch.manual_seed(seed)
    return model(tokens)


@pytest.mark.parametrize("rates", [{}, RATES], ids=["no rates", "evaluation"])
def test_the_trunk_computes_the_published_equations(rates, tokens):
    model = trunk(**rates).train(not rates)
    out = model(tokens)
    x = model.embed.weight.detach().numpy()[tokens]
    for layer, (h, c) in zip(model.layers, out.state, strict=True):
        zeros = x[0, :, :1] * 0 + [0.0] * layer.hidden_size
        x, last_h, last_c = plain_lstm(layer, x, zeros, zeros)
        torch.testing.assert_close(h[0], torch.from_numpy(last_h), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(c[0], torch.from_numpy(last_c), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.raw, torch.from_numpy(x), rtol=1e-12, atol=1e-12)
    assert torch.equal(out.features, out.raw)


@pytest.mark.parametrize("training", [False, True])
def test_carrying_the_state_equals_one_long_pass(training, tokens):
    model = trunk().train(training)
    whole = model(tokens)
    first = model(tokens[:2])
    state = [[h.detach(), c.detach()] for h, c in first.state]  # lists do as well
    second = model(tokens[2:], state)
    torch.testing.assert_close(torch.cat([first.features, second.features]), whole.features)
    torch.testing.assert_close(second.state, whole.state)
    torch.testing.assert_close(model(tokens, model.initial_state(STREAMS)), whole)


@pytest.mark.parametrize("name", RATES)
def test_each_rate_acts_in_training_and_not_in_evaluation(name, tokens):
    model = trunk(**{name: RATES[name]})
    first, again, other = (seeded(model, tokens, seed).features for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)

    evaluated = [seeded(model.eval(), tokens, seed).features for seed in (5, 6)]
    assert torch.equal(*evaluated)
    assert torch.equal(evaluated[0], trunk().eval()(tokens).features)
    model.train().rates = Rates()
    assert torch.equal(model(tokens).features, evaluated[0])


def assert_locked(after, before, kept=0.5):
    """Assert that `after` is `before` [T, B, D] times one mask of zeros and 1/kept."""
    ratio = (after / before).round(decimals=9)
    assert set(ratio.unique().tolist()) == {0.0, 1 / kept}
    assert torch.equal(ratio, ratio[:1].expand_as(ratio))


def test_each_dropout_acts_in_its_place_and_is_locked(tokens):
    def run(**rates):
        """Record what each layer reads and writes, and what the trunk returns."""
        model, seen = trunk(**rates), []
        for layer in model.layers:
            layer.register_forward_hook(lambda _, args, out: seen.append((args[0], out[0])))
        return seen, seeded(model, tokens), model.embed.weight[tokens]

    _, out, rows = run(dropout=0.5)
    assert torch.equal(out.raw, trunk()(tokens).raw)
    assert_locked(out.features, out.raw)
    seen, out, rows = run(dropouth=0.5)
    assert torch.equal(seen[0][0], rows)
    assert_locked(seen[1][0], seen[0][1])
    assert_locked(seen[2][0], seen[1][1])
    assert torch.equal(out.features, seen[2][1])
    seen, _, rows = run(dropouti=0.5, embed_noise=0.1)  # dropout comes after noise
    words = seen[0][0]
    kept = words != 0
    assert torch.equal(kept, kept[:1].expand_as(kept)) and not kept.all()
    assert 0.05 < (words[kept] / 2 - rows[kept]).std() < 0.2
    assert torch.equal(seen[1][0], seen[0][1])


def test_names_of_parameters_are_public_and_half_precision_keeps_its_type(tokens):
    out = trunk(torch.bfloat16, **RATES)(tokens)
    assert out.features.dtype == out.state[0][0].dtype == torch.bfloat16
    names = [name for name, _ in trunk().named_parameters()]
    own = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert names == ["embed.weight", *(f"layers.{i}.{name}" for i in range(3) for name in own)]
    assert list(trunk().state_dict()) == names


def test_values_tokens_and_states_that_do_not_fit_are_refused(tokens):
    for options, message in (
        ({"embed_dim": 0}, "embed_dim must be at least 1, got 0"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"last_hidden_size": 0}, "last_hidden_size must be at least 1"),
        ({"wdrop": 1.0}, r"wdrop must lie in \[0, 1\), got 1"),
        ({"dropouti": -0.1}, r"dropouti must lie in \[0, 1\)"),
        ({"dropoute": float("nan")}, "dropoute .*nan"),
        ({"embed_noise": -1.0}, "embed_noise must be at least 0, got -1"),
        ({"dropoutl": 0.3}, "unexpected keyword argument 'dropoutl'"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            AWDLSTM(WORDS, **options)
    model = trunk()
    for wrong in ((tokens[:0],), (tokens[0],), (tokens, model.initial_state(STREAMS)[:2]),
                  (tokens, model.initial_state(STREAMS + 1))):  # fmt: skip
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            model(*wrong)


@pytest.mark.gpu
def test_cuda_gives_the_same_values_and_gradients(tokens, monkeypatch):
    # the default would round factors to 10 bits
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = trunk(torch.float32, **RATES).eval()
    want = model(tokens).features
    want.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    got = model.cuda()(tokens.cuda()).features
    got.sum().backward()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-3, atol=1e-4)
    assert not torch.equal(*(seeded(model.train(), tokens.cuda(), s).features for s in (5, 6)))


def test_training_drops_the_recurrent_matrix_and_evaluation_is_torchs_lstm():
    torch.manual_seed(0)
    layer, stock = WeightDropLSTM(4, 6).double(), torch.nn.LSTM(4, 6).double()
    stock.load_state_dict(layer.state_dict())
    x, h, c = torch.randn(5, 3, 4).double(), *torch.randn(2, 1, 3, 6).double()
    torch.manual_seed(9)
    mask = layer.weight_hh_l0 * dropout_mask(layer.weight_hh_l0.shape, 0.5, layer.weight_hh_l0)
    assert 0 < (mask == 0).sum() < mask.numel()
    want = plain_lstm(layer, x.numpy(), h[0].numpy(), c[0].numpy(), recurrent=mask)
    torch.manual_seed(9)  # the same mask, at every step
    out, (last_h, last_c) = layer(x, (h, c), 0.5)
    for got, expected in zip((out, last_h[0], last_c[0]), want, strict=True):
        torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)

    want, want_state = stock(x, (h, c))
    got, state = layer.eval()(x, (h, c), 0.5)
    assert torch.equal(got, want)
    assert all(map(torch.equal, state, want_state))


def test_a_word_is_dropped_everywhere_or_nowhere():
    weight = torch.randn(200, 4, requires_grad=True)
    tokens = torch.randint(200, (30, 20))
    torch.manual_seed(0)
    rows = embed_words(weight, tokens, 0.5)
    torch.manual_seed(0)
    masked = weight * dropout_mask((200, 1), 0.5, weight)
    assert torch.equal(rows, masked[tokens])
    rows.sum().backward()
    is_dropped = (masked == 0).all(1)
    assert 60 < is_dropped.sum() < 140
    assert (weight.grad[is_dropped] == 0).all()
    assert torch.equal(embed_words(weight, tokens, 0.0), weight[tokens])
