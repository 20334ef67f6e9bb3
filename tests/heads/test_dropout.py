"""Dropout on contexts and gates, and gate noise, read back from log-probabilities; and masks.

The heads are set so that one number behind the mixture decides a difference of log-probabilities;
those do not depend on the normaliser.
"""

import math
from dataclasses import replace

import pytest
import torch

from highrank_plugins.heads.random_state import dropout_mask
from tests.heads.cases import MIXTAPE, MOC, MOS, make_features

TANH = math.tanh(0.7)
KINDS = [MOC.with_options(components=1), MOS.with_options(components=1),
         MIXTAPE.with_options(components=1), MIXTAPE]  # fmt: skip
FEATURES = torch.ones(40, 5, 4, dtype=torch.float64)


def show_contexts(case, **options):
    """Build a head of 30 classes: log P_x - log P_29 = h_x for x < 29, h = tanh(0.7) everywhere."""
    head = case.build(classes=30, embed_dim=30, dropout=0.4, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.weight.copy_(torch.eye(30))
        head.weight[29] = 0
        head.latent.bias.fill_(0.7)
        if head.components > 1:  # only the first component counts
            head.gate_bias.fill_(100.0)
            head.gate_shared.weight.fill_(100.0)
    return head.train()


def contexts(head, features=FEATURES):
    log_probs = head(features).detach()
    return log_probs[..., :29] - log_probs[..., 29:]


@pytest.mark.parametrize("case", KINDS, ids=str)
@pytest.mark.parametrize("locked", [False, True])
def test_contexts_are_dropped_and_scaled_in_training(case, locked):
    """A locked mask is the same at all time steps, but never over the batch."""
    head = show_contexts(case, locked_dropout=locked)
    h = contexts(head)
    dropped = h.abs() < 1e-9
    assert float(dropped.double().mean()) == pytest.approx(0.4, abs=0.12 if locked else 0.03)
    torch.testing.assert_close(h[~dropped], torch.full_like(h[~dropped], TANH / 0.6))
    assert torch.allclose(h, h[:1].expand_as(h)) == locked
    assert not torch.allclose(h, h[:, :1].expand_as(h))
    h = contexts(head.eval())
    torch.testing.assert_close(h, torch.full_like(h, TANH))


REGULARISED = [
    MOC.with_options(dropout=0.3),
    MOS.with_options(dropout=0.3, locked_dropout=True),
    MIXTAPE.with_options(dropout=0.3),
    MIXTAPE.with_options(gate_dropout=0.3),
    MIXTAPE.with_options(gate_noise=0.3),
]


@pytest.mark.parametrize("case", REGULARISED, ids=str)
def test_masks_do_not_depend_on_gradients_being_computed(case):
    """Compute a long batch without gradients, in parts: the masks are the same."""
    head, features = case.build().train(), make_features(70, 3)
    head.floats_per_token = lambda: 10**7
    torch.manual_seed(3)
    want = head(features).detach()
    torch.manual_seed(3)
    with torch.no_grad():
        got = head(features)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    without, before = replace(case, options={"components": 4}).build(), torch.get_rng_state()
    without.train()(features)
    assert torch.equal(torch.get_rng_state(), before)


def show_gates(**options):
    """Build a mixtape of two components with h = +-tanh(0.7), whose gate logits l_x (x < 20) can
    be read from log P_x - log P_39; the shared gate is 0."""
    head = MIXTAPE.build(classes=40, embed_dim=1, components=2, frequent=20, gate_dim=1, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.weight.fill_(1.0)
        head.latent.bias.copy_(torch.tensor([0.7, -0.7]))
        head.gate_hidden.weight.fill_(0.25)  # t = tanh(1)
        head.gate_embed.fill_(1.0)
    return head.train()


def gate_logits(head, features=FEATURES):
    log_probs = head(features).detach()
    mixed = (log_probs - log_probs[..., 39:]) / TANH  # 2 sigmoid(l) - 1
    return torch.logit((mixed + 1) / 2)


@pytest.mark.parametrize("options", [{"gate_dropout": 0.25}, {"gate_noise": 0.5}], ids=str)
def test_gate_dropout_and_noise_act_on_frequent_gates_in_training(options):
    head = show_gates(**options)
    own, rare = gate_logits(head).split(20, dim=-1)
    assert rare.abs().max() < 1e-9
    plain = gate_logits(head.eval())[..., :20]
    torch.testing.assert_close(plain, torch.full_like(plain, math.tanh(1.0)))
    if "gate_dropout" in options:
        dropped = own.abs() < 1e-9
        assert float(dropped[..., 0].double().mean()) == pytest.approx(0.25, abs=0.1)
        torch.testing.assert_close(own[~dropped], plain[~dropped] / 0.75)
        assert torch.equal(dropped, dropped[..., :1].expand_as(dropped))  # classes share t
        return
    noise = own - math.tanh(1.0)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.03)
    rows = noise.flatten(0, 1)
    assert torch.unique(rows[:, 0]).numel() == len(rows)  # every token its own
    assert float((rows[:, 0] - rows[:, 1]).abs().min()) > 0  # every class its own


# -- masks: fair, of the right values, governed by the seed ------------------------------------


def mask(shape, p, dtype=torch.float32, seed=3):
    torch.manual_seed(seed)
    return dropout_mask(shape, p, torch.empty(0, dtype=dtype))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.65, 0.999])
def test_the_share_of_dropped_entries_is_p(p):
    found = mask((1000, 1001), p)
    torch.testing.assert_close(found[found != 0].unique(), torch.tensor([1 / (1 - p)]))
    dropped, entries = (found == 0).sum().item(), found.numel()
    assert abs(dropped - p * entries) <= 4 * (p * (1 - p) * entries) ** 0.5 + 2**-16 * entries


def test_entries_depend_on_the_seed_and_neither_on_neighbours_nor_on_the_dtype():
    found = mask((1000, 1001), 0.5).flatten() - 1
    for lag in (1, 2, 3, 4, 8, 1001):  # four entries come from one draw of the generator
        correlation = (found[lag:] * found[:-lag]).mean().item()
        assert abs(correlation) < 4 / found.numel() ** 0.5, lag
    half = mask((50, 3), 0.5, torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.equal(half.float(), mask((50, 3), 0.5))
    assert not torch.equal(half.float(), mask((50, 3), 0.5, seed=4))
    assert mask((0, 3), 0.5).shape == (0, 3)
