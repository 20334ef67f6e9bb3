"""Dropout on contexts and gates, and gate noise, read back from log-probabilities; and masks.

The heads are set so that one number behind the mixture decides a difference of log-probabilities;
those do not depend on the normaliser.
"""

import math

import pytest
import torch

from highrank_plugins.heads.random_state import dropout_mask
from tests.heads.cases import MIXTAPE, MOC, MOS, STRUCTURES, make_features

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


def gates_of(**options):
    """Return the logits of frequent and rare classes in training; in evaluation they are plain."""
    head = show_gates(**options)
    found = gate_logits(head).split(20, dim=-1)
    own = gate_logits(head.eval())[..., :20]
    torch.testing.assert_close(own, torch.full_like(own, math.tanh(1.0)))
    return found


def test_gate_dropout_acts_on_frequent_gates():
    own, rare = gates_of(gate_dropout=0.25)
    dropped = own.abs() < 1e-9
    assert float(dropped[..., 0].double().mean()) == pytest.approx(0.25, abs=0.1)
    kept = own[~dropped]
    torch.testing.assert_close(kept, torch.full_like(kept, math.tanh(1.0) / 0.75))
    assert torch.equal(dropped, dropped[..., :1].expand_as(dropped))  # t is shared by the classes
    assert rare.abs().max() < 1e-9


def test_gate_noise_acts_on_frequent_gates():
    own, rare = gates_of(gate_noise=0.5)
    noise = own - math.tanh(1.0)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.03)
    rows = noise.flatten(0, 1)
    assert torch.unique(rows[:, 0]).numel() == len(rows)  # every token its own
    assert float((rows[:, 0] - rows[:, 1]).abs().min()) > 0  # every class its own
    assert rare.abs().max() < 1e-9


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_head_without_dropout_leaves_the_random_state_alone(case):
    head = case.build().train()
    before = torch.get_rng_state()
    head(make_features(3))
    assert torch.equal(torch.get_rng_state(), before)


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


def test_a_mask_without_dropout_is_1():
    assert torch.equal(mask((70_000,), 0.0), torch.ones(70_000))
    assert mask((0, 3), 0.5).shape == (0, 3)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 1001])
def test_entries_do_not_depend_on_their_neighbours(lag):
    """Compare neighbours, since four entries come from one draw of the generator."""
    found = mask((1000, 1001), 0.5).flatten() - 1
    correlation = (found[lag:] * found[:-lag]).mean().item()
    assert abs(correlation) < 4 / found.numel() ** 0.5


def test_masks_depend_on_the_seed_and_not_on_the_dtype():
    half = mask((50, 3), 0.5, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half.float(), mask((50, 3), 0.5))
    assert not torch.equal(half.float(), mask((50, 3), 0.5, seed=4))
