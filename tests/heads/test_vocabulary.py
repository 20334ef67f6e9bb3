"""A vocabulary matrix may be any function of parameters, under every structure, f and loss."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.profiler import ProfilerActivity, profile

from highrank_plugins.common.names import layer_name
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import (
    HEADS,
    VOCABULARY,
    Vocabulary,
    build_head,
    build_pointwise,
    build_vocabulary,
    vocabulary_names,
)
from highrank_plugins.losses.kernels import triton
from tests.heads.cases import MOS, PRODUCT, SOFTMAX, STRUCTURES, make_features

CLASSES, TOKENS = 37, 11
OPTIONS = {"low_rank": {"rank": 2}, "tiers": {"factor": 2, "shares": "0.1,0.9"}}
BY_CLASS = ("unit", {"by_class": True})
MATRICES = [*((n, OPTIONS.get(n, {})) for n in vocabulary_names() if n != "plain"), BY_CLASS]
TARGET = torch.arange(TOKENS) * 3 % CLASSES
BLOCKED = ("chunked", "fused", "cpp")  # implementations beside the reference


class Scaled(nn.Module):
    """A function of a user's, with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.tensor(0.5))

    def forward(self, raw):
        return raw * self.by

    def right_inverse(self, matrix):
        return matrix / self.by


def parametrised(case, function, seed=0, **options):
    """Return a float64 head whose matrix is a function of random parameters."""
    head = case.build(classes=CLASSES, seed=seed, **options)
    parametrize.register_parametrization(head, "weight", function.double(), unsafe=True)
    return head


def results(head, impl, **options):
    """Return the loss and all gradients by name."""
    head.zero_grad()
    x = make_features(TOKENS).requires_grad_()
    loss = head.nll(x, TARGET, impl=impl, reduction="sum", **options).loss
    loss.backward()
    grads = {name: p.grad.clone() for name, p in head.named_parameters()}
    return {"loss": loss.detach(), "features": x.grad, **grads}


def same(found, right, bound=1e-9):
    assert found.keys() == right.keys()
    for name, value in right.items():
        error = (found[name] - value).abs().max() / value.abs().max().clamp_min(1)
        assert error <= bound, (name, float(error))


def assert_losses_agree(head):
    right = results(head, "reference", label_smoothing=0.1)
    assert all(value.abs().max() > 0 for n, value in right.items() if n.startswith("parametriz"))
    for impl in BLOCKED:
        same(results(head, impl, label_smoothing=0.1), right)
    with torch.no_grad():
        log_probs = head.log_probs(make_features(TOKENS))
        nll = head.nll(make_features(TOKENS), TARGET, impl="reference").nll
    assert torch.allclose(log_probs.gather(1, TARGET[:, None])[:, 0], -nll, atol=1e-12)


class Wrong(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.forward = change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w[:, :-1], r"Wrong returns torch.float64 \(37, 3\), expected .* \(37, 4\)"),
        (lambda w: w.float(), r"Wrong returns torch.float32 \(37, 4\), expected torch.float64"),
        (lambda w: w / w[:, :1].mul(torch.arange(CLASSES)[:, None] != 5),
         r"Wrong returns NaN or infinite numbers for finite parameters, first for class 5;"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("impl", ["reference", *BLOCKED, "auto"])
def test_a_wrong_matrix_is_refused_at_the_first_loss(change, message, impl):
    head = parametrised(SOFTMAX, Wrong(change))
    with pytest.raises(UserError, match=message) as refused:
        head.nll(make_features(TOKENS), TARGET, impl=impl)
    assert "\n" not in str(refused.value)


def test_a_diverged_matrix_is_not_blamed_on_its_parametrisation():
    head = parametrised(MOS, Scaled())
    with torch.no_grad():
        head.parametrizations.weight.original[2] = torch.nan
    with pytest.raises(UserError) as refused:
        head.nll(make_features(TOKENS), TARGET, impl="reference")
    assert "parametrisation" not in str(refused.value)


def test_the_matrix_is_checked_once():
    head, calls = parametrised(SOFTMAX, function := Scaled()), []
    function.register_forward_hook(lambda *_: calls.append(1))
    results(head, "reference")
    first = len(calls)
    results(head, "reference")
    assert first > 1 and len(calls) == first + 1


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_parametrised_head_keeps_its_names_copies_and_state(case):
    assert_losses_agree(head := parametrised(case, Scaled()))
    assert layer_name(head) == case.head
    assert HEADS.constants(head) == HEADS.constants(case.build(classes=CLASSES))
    right = results(head, "reference")
    same(results(copy.deepcopy(head), "fused"), right)
    other = parametrised(case, Scaled(), seed=5)
    other.load_state_dict(head.state_dict())
    same(results(other, "fused"), right)
    plain = case.build(classes=CLASSES)
    for each in (plain, head):  # the one through its parametrisation
        torch.manual_seed(3)
        each.reset_parameters()
    assert torch.allclose(head.weight, plain.weight, rtol=1e-15)


@pytest.mark.triton
def test_triton_reads_the_dtype_of_a_parametrised_matrix():
    head = parametrised(MOS.with_options(components=300), Scaled())
    with pytest.raises(ValueError, match=r"at most \d+ components in torch.float64"):
        triton.kernels(head)


# -- the matrices of this package ------------------------------------------------------------


@pytest.mark.parametrize(("name", "options"), MATRICES, ids=str)
@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_every_structure_function_and_matrix_has_the_gradients_of_the_reference(
    case, name, options
):
    assert_losses_agree(case.build(classes=CLASSES, vocabulary=name, **options))


def written_out(name, codes, original, *others):
    """Return a matrix as its definition states it."""
    if name == "centred":
        return torch.stack([row - sum(original) / len(original) for row in original])
    if name == "unit":
        rows = zip(others[0].expand(len(original)), original, strict=True)
        return torch.stack([s * row / row.square().sum().sqrt() for s, row in rows])
    if name == "low_rank":
        return torch.einsum("mr,rd->md", original, *others)
    if name == "tiers":
        return torch.cat([original, torch.einsum("mr,rd->md", *others)])
    return torch.stack([original[code] for code in codes])


@pytest.mark.parametrize(("name", "options"), MATRICES, ids=str)
def test_a_matrix_and_its_gradients_are_those_of_its_definition(name, options):
    head = SOFTMAX.build(classes=CLASSES, vocabulary=name, **options)
    own = head.parametrizations.weight
    stored = sorted(own.parameters(), key=lambda p: p.dim(), reverse=True)  # unit's scale last
    tensors = [p.detach().clone().requires_grad_() for p in stored]
    found, right = head.weight, written_out(name, getattr(own[0], "codes", None), *tensors)
    upstream = torch.randn(right.shape, dtype=right.dtype)
    assert torch.allclose(found, right, rtol=0, atol=1e-12)
    wanted = torch.autograd.grad(right, tensors, upstream)
    for grad, want in zip(torch.autograd.grad(found, stored, upstream), wanted, strict=True):
        assert torch.allclose(grad, want, rtol=0, atol=1e-12)


def test_a_row_of_zeros_stays():
    part, raw = build_vocabulary("unit"), torch.randn(4, 3)
    raw[2] = 0
    raw = part.right_inverse(raw).requires_grad_()
    part(raw).sum().backward()
    assert part(raw)[2].tolist() == [0, 0, 0] and raw.grad[2].tolist() == [0, 0, 0]
    assert raw.grad.isfinite().all() and part.scale.grad.isfinite()


@pytest.mark.parametrize(("name", "options"), MATRICES, ids=str)
def test_a_matrix_starts_near_the_given_one(name, options):
    torch.manual_seed(0)
    tall, wide = torch.randn(CLASSES, 2), torch.randn(2, 4)
    given = tall @ wide if name in ("low_rank", "tiers") else torch.randn(CLASSES, 4)
    head = build_head("softmax", num_classes=CLASSES, feature_dim=4, vocabulary=name, **options)
    with torch.no_grad():
        head.weight = given.clone()
    if name in ("low_rank", "tiers") or options == BY_CLASS[1]:
        assert torch.allclose(head.weight, given, atol=1e-5)
    elif name == "unit":
        assert torch.allclose(head.weight.norm(dim=1), given.norm(dim=1).mean().expand(CLASSES))
    elif name == "centred":
        assert torch.allclose(head.weight, given - given.mean(0), atol=1e-6)
    else:
        own = head.parametrizations.weight
        assert len(own.original) == int(0.1 * CLASSES) and head.weight.unique(dim=0).size(0) == 3
        nearest = torch.cdist(given, own.original).argmin(1)
        assert torch.equal(own[0].codes, nearest)


@pytest.mark.parametrize(("name", "options"), MATRICES, ids=str)
def test_a_state_dictionary_holds_the_matrix_and_names_it(name, options):
    build = {"num_classes": CLASSES, "feature_dim": 4, "vocabulary": name, **options}
    one, other = build_head("mos", **build), build_head("mos", **build)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.weight, other.weight)
    assert one.function()["vocabulary.name"] == name
    plain, state = build_head("mos", num_classes=CLASSES, feature_dim=4), one.state_dict()
    for into, given in ((plain, one), (one, plain)):
        with pytest.raises(RuntimeError, match=r"Missing key.*weight"):
            into.load_state_dict(given.state_dict())
    if name == "centred":
        del build["vocabulary"]
        with pytest.raises(UserError, match=r"vocabulary\.name centred there, unit in this head"):
            build_head("mos", vocabulary="unit", **build).load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": "centered"}, "unknown vocabulary matrix 'centered'; did you mean 'centred"),
        ({"vocabulary": "unit", "rank": 3}, "has no option 'rank'; known:"),
        ({"vocabulary": nn.Identity()}, "vocabulary matrix: expected a name or an instance of"),
        *(({"vocabulary": name, "weight": nn.Parameter(torch.ones(CLASSES, 4))},
           f"^{name}: its parameters have no row for each class")
          for name in ("low_rank", "tiers", "codebook")),
    ],
)  # fmt: skip
def test_wrong_choices_are_refused(options, message):
    own = OPTIONS.get(options["vocabulary"], {}) if "weight" in options else {}
    with pytest.raises(ValueError, match=message):
        build_head("softmax", num_classes=CLASSES, feature_dim=4, **options, **own)


def test_an_option_of_function_and_matrix_is_not_given_to_one_of_them(monkeypatch):
    class Shifted(Vocabulary):
        def __init__(self, c: float = 0.0):
            super().__init__()
            self.c = c

        def forward(self, raw):
            return raw + self.c

    sizes = {"num_classes": CLASSES, "feature_dim": 4, "pointwise": "gss", "vocabulary": "shifted"}
    monkeypatch.setitem(VOCABULARY._classes, "shifted", Shifted)
    monkeypatch.setattr(Shifted, "registered_name", "shifted", raising=False)
    with pytest.raises(ValueError, match=r"^c: .* two options of this name; build the func"):
        build_head("softmax", **sizes, c=0.1)
    head = build_head("softmax", **sizes | {"pointwise": build_pointwise("gss", c=2.0)}, c=0.1)
    assert (head.pointwise.c, head.parametrizations["weight"][0].c) == (2.0, 0.1)


def peak_of(step):
    """Return the largest number of bytes that a step's tensors had at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


@pytest.mark.parametrize("impl", BLOCKED)
def test_a_matrix_takes_at_most_two_matrices_more_than_a_plain_one(impl):
    classes, width = 4000, 64
    features, target, peaks = torch.randn(128, width), torch.arange(128), {}
    for name, options in [("plain", {}), *MATRICES]:
        own = options | ({"rank": 16} if name == "low_rank" else {})
        sizes = {"num_classes": classes, "feature_dim": width}
        head = build_head("softmax", vocabulary=name, **sizes, **own)

        def step(head=head):
            out = head.nll(features, target, impl=impl, reduction="sum", memory=2**20)
            out.loss.backward()
            head.zero_grad()

        step()
        peaks[name, *options] = peak_of(step)
    most = peaks["plain",] + 2 * classes * width * 4
    assert all(peaks["plain",] <= peak <= most for peak in peaks.values()), peaks
