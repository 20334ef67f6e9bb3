"""Dropout on contexts and gates, gate noise, masks; and initial values.

Heads with dropout are set so that one number behind the mixture decides a difference of
log-probabilities; those do not depend on the normaliser.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from highrank_plugins.heads import Head, build_head, build_pointwise
from highrank_plugins.heads.pointwise import Pointwise
from highrank_plugins.heads.random_state import dropout_mask
from tests.heads.cases import MIXTAPE, MOC, MOS, PRODUCT, STRUCTURES, make_features

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


# -- initial values: W uniform ±0.1, b zero, linear maps torch's default, PLIF slopes around 1 ----

MANY, WIDTH = 200, 64


def fresh(case, **options):
    torch.manual_seed(0)
    return build_head(case.head, num_classes=MANY, feature_dim=WIDTH, **options)


def test_functions_start_at_the_given_values_or_near_the_identity():
    for sd in (1.0, 0.25, 0.0):
        torch.manual_seed(0)
        logits = build_pointwise("plif", init_sd=sd).slope_logits.detach().double()
        assert logits.shape == (100_000,)
        assert float(logits.mean()) == pytest.approx(math.log(math.e - 1), abs=0.02)
        assert float(logits.std()) == pytest.approx(sd, rel=0.02, abs=1e-6)
    gss = build_pointwise("gss", c=0.5, k=3.0, learn=True)
    assert gss.c.item() == 0.5
    assert gss.log_k.exp().item() == pytest.approx(3.0, rel=1e-6)
    z = torch.linspace(-15, 15, 61)
    moved = build_pointwise("monotone_mlp")(z)
    assert (moved.diff() > 0).all()
    assert (moved - z).abs().max().item() < 1


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_seeds_draw_in_a_fixed_order(case):
    """The matrix, contexts, then the prior, or gates of all classes and those of each."""
    head = fresh(case, **case.options)
    torch.manual_seed(0)
    want = {"weight": torch.empty(MANY, WIDTH).uniform_(-0.1, 0.1)}
    for name in ("latent", "prior", "gate_hidden", "gate_shared"):
        if made := getattr(head, name, None):
            linear = nn.Linear(WIDTH, made.out_features, bias=name == "latent")
            want |= {f"{name}.{n}": p for n, p in linear.named_parameters()}
    if case.head == "mixtape":
        want["gate_embed"] = torch.empty(3, 2).uniform_(-0.1, 0.1)
    state = head.state_dict()
    zeros = state.keys() & {"bias", "gate_bias"}
    assert state.keys() - zeros - {"_extra_state"} == want.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in want.items())
    assert zeros and not any(state[name].any() for name in zeros)
    shared = nn.Parameter(torch.full((MANY, WIDTH), 2.0))
    head = fresh(case, weight=shared)
    head.reset_parameters()
    assert head.weight is shared and bool((shared == 2).all())


def start(case):
    return build_head(
        case.head, num_classes=11, feature_dim=6, pointwise=case.pointwise,
        **case.options, **case.pointwise_options,
    )  # fmt: skip


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_a_reset_gives_what_the_constructor_gives(case):
    torch.manual_seed(0)
    head = start(case)
    first = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    for parameter in head.parameters():
        parameter.detach().fill_(math.nan)
    torch.manual_seed(0)
    head.reset_parameters()
    assert all(torch.equal(tensor, first[name]) for name, tensor in head.state_dict().items())


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_each_module_resets_its_own_parameters(case):
    with torch.device("meta"):
        head = start(case)
    head = head.to_empty(device="cpu")
    for parameter in head.parameters():
        parameter.detach().fill_(math.nan)
    for module in (m for m in head.modules() if m._parameters):
        own = {*map(id, module._parameters.values())}
        others = [p for p in head.parameters() if id(p) not in own]
        before = [bool(p.isnan().all()) for p in others]
        module.reset_parameters(*[False] * isinstance(module, Head))
        assert before == [bool(p.isnan().all()) for p in others]
        assert all(p.isfinite().all() for p in module.parameters(recurse=False))


def test_a_function_with_parameters_must_say_how_they_start():
    class Shift(Pointwise):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))

    with pytest.raises(NotImplementedError, match="Shift has parameters: define its reset_para"):
        Shift().reset_parameters()
