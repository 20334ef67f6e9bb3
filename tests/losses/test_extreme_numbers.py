"""Features, weights and logits up to 1e12: finite, normalised, the same by all losses.

Losses stay finite up to 1e36. A gradient is a product of up to three of these numbers.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from highrank_plugins.heads import build_head, build_pointwise
from highrank_plugins.losses.kernels import torch as in_torch
from tests.heads.cases import FEATURE_DIM, PRODUCT, Case
from tests.losses.implementations import CLASSES, FULL, RUNNABLE, TARGET, compare, inputs, run

HEADS = sorted({case.head for case in PRODUCT})
IMPLEMENTATIONS = [name for name in RUNNABLE if name != "triton"]  # its interpreter takes seconds
# a gradient is a product of three such numbers, also where a saturated tanh makes it 0 in the end
LARGEST, DTYPES = 1e12, [torch.float64, torch.float32, torch.bfloat16]
MODERATE = [1e4, 10.0]  # here float64 has digits left to compare gradients
TOKENS = 5
FILLS = {
    "normal": lambda shape, rng: torch.randn(shape, generator=rng).clamp_(-3, 3) / 3,
    "equal": lambda shape, rng: torch.ones(shape),
    "signed zeros": lambda shape, rng: torch.where(_coins(shape, rng), 0.0, -0.0),
    "signs": lambda shape, rng: torch.where(_coins(shape, rng), 1.0, -1.0),
    "sparse": lambda shape, rng: _coins(shape, rng).float() * _coins(shape, rng),
}


def _coins(shape, rng):
    return torch.rand(shape, generator=rng) < 0.5


@dataclass(frozen=True)
class Numbers:
    """Say how to fill features and parameters: each by a kind and its largest power of ten."""

    dtype: torch.dtype
    seed: int
    kinds: tuple[str, ...]
    powers: tuple[float, ...]
    largest: float

    def fill(self, case: Case):
        """Return the head and the features, and the largest logit of any kind at most."""
        head = case.build(classes=CLASSES)
        rng = torch.Generator().manual_seed(self.seed)
        features = self._tensor(0, (TOKENS, FEATURE_DIM), rng)
        size, most = float(features.abs().max()), 1.0
        with torch.no_grad():
            for index, (name, parameter) in enumerate(head.named_parameters(), 1):
                if name.startswith("pointwise."):
                    continue
                values = self._tensor(index, parameter.shape, rng)
                by_features = parameter.dim() == 2 and parameter.size(1) == FEATURE_DIM
                factor = (size if by_features else 1.0) * parameter.shape[-1]
                bound = factor * float(values.abs().max())
                if bound > self.largest:
                    values *= self.largest / bound
                most = max(most, min(bound, self.largest))
                parameter.copy_(values)
        return head.to(self.dtype), features.to(self.dtype), most

    def _tensor(self, index, shape, rng):
        size = self.largest ** self.powers[index % len(self.powers)]
        return FILLS[self.kinds[index % len(self.kinds)]](shape, rng).double() * size


@st.composite
def numbers(draw):
    dtype = draw(st.sampled_from(DTYPES))
    return Numbers(
        dtype,
        draw(st.integers(0, 2**20)),
        tuple(draw(st.lists(st.sampled_from(list(FILLS)), min_size=3, max_size=7))),
        tuple(draw(st.lists(st.floats(-1, 1), min_size=3, max_size=7))),
        draw(st.sampled_from([LARGEST, *MODERATE])),
    )


def check(case: Case, made: Numbers, target: torch.Tensor, smoothing: float) -> None:
    head, features, most = made.fill(case)
    features.requires_grad_()
    options = {"label_smoothing": smoothing, "reduction": "sum"}
    exact = run(head.double(), features.double(), target, impl="reference", **options)
    head.to(made.dtype)
    bound = torch.finfo(made.dtype).max / 64
    assume(all(g.abs().max() < bound for g in exact.gradients.values()))
    with torch.no_grad():
        log_probs = head(features)
    assert torch.isfinite(log_probs).all()
    totals = log_probs.double().exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals), rtol=0, atol=1e-5)
    cancelled = 1e-14 * made.largest**2 * steepest(head, most)
    for impl in IMPLEMENTATIONS:
        got = run(head, features, target, impl=impl, **options)
        for name, tensor in [*got.values.items(), *got.gradients.items()]:
            assert torch.isfinite(tensor).all(), f"{impl}: {name}"
        if made.dtype == torch.float64 and made.largest in MODERATE:
            for ours, want in ((got.values, exact.values), (got.gradients, exact.gradients)):
                torch.testing.assert_close(
                    ours, want, rtol=1e-6, atol=cancelled, msg=lambda m, i=impl: f"{i}: {m}"
                )


def steepest(head, most: float) -> float:
    """Return the largest slope of the pointwise function for logits up to `most`."""
    if head.pointwise.__class__.__name__ == "MultiMax":  # has squares of the logits
        return 10 + 4 * float(head.pointwise.strengths.detach().double().abs().sum()) * most
    return 10.0


LONG = pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(0)])


@pytest.mark.parametrize("examples", [100, LONG])
@pytest.mark.parametrize("head", HEADS)
def test_extreme_cases_match(head, examples):
    cases = st.sampled_from([case for case in PRODUCT if case.head == head])
    targets = st.lists(st.integers(0, CLASSES - 1), min_size=TOKENS, max_size=TOKENS)

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(cases, numbers(), targets.map(torch.tensor), st.sampled_from([0.0, 0.1]))
    def hold(case, made, target, smoothing):
        check(case, made, target, smoothing)

    hold()


@pytest.mark.parametrize("case", [c for c in PRODUCT if c.pointwise != "multimax"], ids=str)
def test_losses_are_finite_where_gradients_need_not_be(case):
    for seed in range(5):
        kinds = tuple(sorted(FILLS)[(seed + n) % len(FILLS)] for n in range(4))
        head, features, _ = Numbers(torch.float32, seed, kinds, (1.0, -0.4, 0.5), 1e36).fill(case)
        with torch.no_grad():
            log_probs = head(features)
            nll = head.nll(features, torch.arange(TOKENS), reduction="none").nll
        assert torch.isfinite(log_probs).all() and torch.isfinite(nll).all()


@pytest.mark.parametrize(
    "impl, smoothing", [*((i, 0.0) for i in RUNNABLE), ("cpp", 0.1), ("triton", 0.1)]
)
@pytest.mark.parametrize("head", ["softmax", "moc", "mos"])
def test_ten_thousand_equal_logits_match_in_half_precision(head, impl, smoothing):
    # f(z) is 2e6 then, and a log-sum-exp of that has steps of 1/4 in float32
    case = next(c for c in PRODUCT if c.head == head and c.pointwise == "multimax")
    powers = (-1.0, -1.0, 1.0) if head == "softmax" else (0.5, 1.0, -0.5)
    module, features, most = Numbers(torch.float16, 0, ("equal",) * 3, powers, 1e4).fill(case)
    assert steepest(module, most) * most > 1e6
    features.requires_grad_()
    target = torch.tensor([12, 10, 11, 10, 7])
    options = {"reduction": "sum", "label_smoothing": smoothing}
    exact = run(module.double(), features.double(), target, impl="reference", **options)
    got = run(module.half(), features, target, impl=impl, **options)
    assert float(got.values["loss"]) == pytest.approx(float(exact.values["loss"]), rel=1e-6)
    assert all(torch.isfinite(gradient).all() for gradient in got.gradients.values())
    for name in ("weight", "bias"):
        want = exact.gradients[name].half()
        torch.testing.assert_close(got.gradients[name], want, rtol=4e-3, atol=0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "function", [("plif", {}), ("multimax", {}), ("gss", {"learn": True}), ("gss", {"k": 0.3})]
)
@pytest.mark.parametrize("head", HEADS)
def test_a_bias_that_rules_a_class_out_leaves_all_gradients(head, function, impl):
    """e^−1e4 is 0, too, and its gradients have no f(−∞)."""
    pointwise, chosen = function
    found = []
    for bias in (-torch.inf, -1e4):
        torch.manual_seed(1)
        f = build_pointwise(pointwise, **chosen)
        options = {"frequent": 4} if head == "mixtape" else {}
        layer = build_head(head, num_classes=9, feature_dim=4, pointwise=f, **options).double()
        with torch.no_grad():
            layer.weight.normal_()
            layer.bias[8] = bias
        x = torch.randn(12, 4, dtype=torch.float64)
        loss = layer.nll(x, torch.arange(12) % 8, reduction="sum", impl=impl).loss
        loss.backward()
        found.append([loss, *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(found[0], found[1])


# -- mixtures whose probabilities underflow: with label smoothing, logarithms make the loss -------

WAYS = [("fused", "always"), ("fused", "underflow"), ("cpp", "underflow")]
BOUNDED = ("monotone_mlp", "softcap", "sigmoid_cap")  # no probability underflows


@pytest.mark.parametrize(("impl", "way"), WAYS)
@pytest.mark.parametrize("case", [case for case in PRODUCT if case.head == "mos"], ids=str)
def test_the_log_domain_is_exact(case, reduction, impl, way, monkeypatch):
    """A GPU takes it for every block. Here some tokens underflow, or a patch takes it always."""
    if way == "underflow" and case.pointwise in BOUNDED:
        pytest.skip("nothing underflows")
    taken, log_domain = [], in_torch.log_domain_pass
    monkeypatch.setattr(in_torch, "log_domain_pass", lambda *a: taken.append(1) or log_domain(*a))
    head, features = inputs(case)
    if way == "always":
        monkeypatch.setattr(
            in_torch.Kernels,
            "mixture_pass",
            lambda kernels, block, bias, recompute: in_torch.log_domain_pass(kernels, block),
        )
    else:
        with torch.no_grad():
            head.bias.copy_(torch.linspace(0, -2000, CLASSES))  # e^-2000 is 0 in float64
            head.weight.copy_(torch.linspace(0, 1, CLASSES).unsqueeze(-1).expand_as(head.weight))
            features[::2] *= 500  # these outweigh the bias
    compare(head, features, TARGET, impl, reduction=reduction, **FULL)
    assert taken
