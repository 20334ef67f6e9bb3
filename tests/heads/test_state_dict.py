"""State: whose function it is, what is prepared from it, and what a constructor draws."""

import copy
import itertools
import pickle
import random

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import linear

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import HEADS, POINTWISE, Head, Pointwise, build_head, log_probs
from tests.heads import cases

M, F = 10, 6
OTHERS = [
    # two layers whose parameters have the same names and shapes, and what the message names
    ({"pointwise": "softcap", "cap": 15}, {"pointwise": "softcap"}, "pointwise.cap 15.0 there, 30"),
    ({"pointwise": "gss"}, {"pointwise": "softcap"}, "pointwise.name gss there, softcap in"),
    ({"pointwise": "gss"}, {}, "pointwise.name gss there, identity in"),
    ({"name": "mos"}, {"name": "moc"}, "name mos there, moc in"),
    ({"name": "mos", "context_scale": 4}, {"name": "mos"}, "context_scale 4.0 there, 1.0 in"),
    ({"name": "mixtape", "frequent": 3, "gate_weight_norm": 1},
     {"name": "mixtape", "frequent": 3}, "gate_weight_norm 1.0 there, 0.0 in"),
]  # fmt: skip


@pytest.mark.parametrize("there, here, message", OTHERS, ids=str)
def test_the_state_of_another_function_is_refused(there, here, message, tmp_path):
    """Also within a model, through a file, and without the order of the dictionary."""
    old, new = (
        nn.Sequential(build_head(**{"name": "softmax", "num_classes": M, "feature_dim": F} | o))
        for o in (there, here)
    )
    torch.save(old.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    with pytest.raises(UserError, match=message) as error:
        new.load_state_dict(dict(reversed(state.items())))
    assert "\n" not in str(error.value)
    old.load_state_dict(state)


def test_the_state_says_which_classes_are_frequent():
    sizes = {"num_classes": M, "feature_dim": F, "frequent": 3, "gate_dim": 2}
    counts = torch.tensor([1, 9, 3, 3, 0, 0, 7, 0, 0, 0])
    head = build_head("mixtape", **sizes, class_counts=counts).eval()
    other = build_head("mixtape", **sizes, frequent_classes=[2, 6, 1]).eval()
    assert head.class_order.tolist() == [1, 6, 2, 0, 3, 4, 5, 7, 8, 9]
    features = torch.randn(4, F)
    with torch.no_grad():
        other(features)  # prepares tensors
        other.load_state_dict({"class_order": head.class_order}, strict=False)
        after = other(features)
    other.load_state_dict(other.state_dict())
    assert torch.equal(other(features), after)
    head.load_state_dict(other.state_dict())
    assert torch.equal(head(features), after)
    sorted_head = build_head("mixtape", **sizes, class_counts=[9 - x for x in range(M)])
    assert sorted_head.class_order is None
    with pytest.raises(RuntimeError, match=r"Unexpected key.*class_order"):
        sorted_head.load_state_dict(head.state_dict())
    with torch.device("meta"):
        empty = build_head("mixtape", **sizes, class_counts=counts).to_empty(device="cpu")
    empty.reset_parameters()
    assert torch.equal(empty.class_order, head.class_order)


def test_a_plain_softmax_has_the_state_of_a_linear_layer():
    softmax = build_head("softmax", num_classes=M, feature_dim=F)
    assert softmax.load_state_dict(nn.Linear(F, M).state_dict())
    capped = build_head("softmax", num_classes=M, feature_dim=F, pointwise="softcap")
    with pytest.raises(RuntimeError, match=r"Missing key.* \"_extra_state\""):
        capped.load_state_dict(softmax.state_dict())
    assert capped.load_state_dict(softmax.state_dict(), strict=False)


# -- tensors that inference prepares from parameters are used until these change ---------------

PREPARED = [
    cases.SOFTMAX.with_pointwise("plif", knots=9, bound=3.0),
    cases.MIXTAPE.with_options(gate_weight_norm=1.5),
]


@pytest.mark.parametrize("case", PREPARED, ids=str)
def test_tensors_are_prepared_once_for_many_steps(case, monkeypatch):
    head, features, calls = case.build(), cases.make_features(3), []
    prepare = type(head).tensors
    monkeypatch.setattr(log_probs, "is_ours", lambda _: True)  # also with the method that counts
    monkeypatch.setattr(type(head), "tensors", lambda self: calls.append(1) or prepare(self))
    with torch.no_grad():
        first = head(features)
        for _ in range(3):
            assert torch.equal(head(features), first)
        assert len(calls) == 1
        for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
            assert torch.equal(other(features), first)
        if case.pointwise == "plif":  # another number of a function is seen
            head.pointwise.bound = 2.0
            assert not torch.allclose(head(features), first)
    with torch.inference_mode():
        head(features)
    head(features).sum().backward()  # gradients are not lost after inference
    assert all(p.grad is not None for p in head.parameters())
    compiled = torch.compile(head, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(features), head(features))


CHANGES = ["in place", "load_state_dict", "dtype", "data and eval()", "inference mode"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", PREPARED, ids=str)
def test_prepared_tensors_are_never_stale(case, change):
    without_graph = torch.inference_mode if change == "inference mode" else torch.no_grad
    with without_graph():
        head, other, features = case.build(), case.build(seed=5), cases.make_features(3)
        before = head(features)
        if change == "dtype":
            head, other, features = head.float(), other.float(), features.float()
        if change in ("load_state_dict", "dtype"):
            head.load_state_dict(other.state_dict())
        else:
            for mine, theirs in zip(head.parameters(), other.parameters(), strict=True):
                (mine.data if change == "data and eval()" else mine).copy_(theirs)
        if change == "data and eval()":
            head.eval()
        got = head(features)
        assert torch.equal(got, other(features))
        assert not torch.allclose(got, before.to(got.dtype))


@pytest.mark.parametrize("case", PREPARED, ids=str)
def test_a_fused_optimizer_is_noticed_in_evaluation_mode(case):
    """It counts no changes of the parameters that it writes."""
    head, features = case.build(), cases.make_features(3)
    optimizer = torch.optim.Adam(head.parameters(), 0.1, fused=True)
    losses = [
        lambda: head.nll(features, torch.arange(3), reduction="sum").loss,
        lambda: head(features)[:, 0].sum(),
        lambda: sum(p.square().sum() for p in head.parameters()),  # as of a tied matrix
    ]
    for loss, looks in itertools.product(losses, (False, True)):
        with torch.no_grad():
            head(features)
        loss().backward()
        with torch.no_grad():
            if looks:  # while there are gradients
                head(features)
            optimizer.step()
            if looks:
                assert torch.equal(head(features), copy.deepcopy(head)(features))
            optimizer.zero_grad()
            assert torch.equal(head(features), copy.deepcopy(head)(features))


def test_no_tensor_gets_the_address_of_one_that_something_was_prepared_from():
    """Else the second of two calls with matrices of their own may have the first's function."""
    head = build_head("softmax", num_classes=M, feature_dim=F, vocabulary="centred").eval()
    matrix = {"parametrizations.weight.original": torch.randn(M, F)}
    memory = StorageWeakRef(matrix["parametrizations.weight.original"].untyped_storage())
    with torch.no_grad():
        torch.func.functional_call(head, matrix, (torch.randn(3, F),))
    del matrix
    assert not memory.expired()
    head.train()
    assert memory.expired()


# -- what a constructor draws must be in the state, or a checkpoint is another model -----------


@pytest.fixture(autouse=True)
def without_architectures(monkeypatch):
    """Register no architectures of fairseq: other tests list them."""
    for registry in (HEADS, POINTWISE):
        monkeypatch.setattr(registry, "_listeners", [])


def own(keep):
    """Return a structure whose constructor draws a projection, which `keep` stores."""

    class Projected(Head):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            keep(self, torch.randn(F, F))

        def chunk_logits(self, features, tensors, random_state):
            return linear(features @ self.projection, self.weight, self.bias)

    return Projected


def build(cls, **options):
    HEADS.register("projected")(cls)
    try:
        return build_head("projected", num_classes=M, feature_dim=F, **options)
    finally:
        HEADS.unregister("projected")


@pytest.mark.parametrize("keep", [
    lambda layer, drawn: setattr(layer, "projection", drawn),
    lambda layer, drawn: layer.register_buffer("projection", drawn, persistent=False),
    lambda layer, drawn: setattr(layer, "projection", torch.eye(F) * random.random()),
])  # fmt: skip
def test_numbers_that_no_checkpoint_holds_are_refused(keep):
    with pytest.raises(UserError, match="Projected: built twice, with one state dictionary"):
        build(own(keep))


@pytest.mark.parametrize("keep", [
    lambda layer, drawn: layer.register_buffer("projection", drawn),
    lambda layer, drawn: setattr(layer, "projection", nn.Parameter(drawn)),
    lambda layer, drawn: setattr(layer, "projection", torch.tril(torch.ones(F, F))),
])  # fmt: skip
def test_other_layers_are_built_as_ever(keep):
    """A shared matrix keeps its numbers, and the next random numbers are as without the check."""
    found, embedding = [], nn.Embedding(M, F)
    before = embedding.weight.detach().clone()
    for make in (build, lambda cls, weight: cls(M, F, weight=weight)):
        torch.manual_seed(1)
        random.seed(1)
        layer = make(own(keep), weight=embedding.weight)
        assert layer.training and layer.weight is embedding.weight
        assert torch.equal(embedding.weight, before)
        layer.states_function = False  # one of the two is registered
        found.append([*layer.state_dict().values(), torch.rand(3), torch.tensor(random.random())])
    assert all(map(torch.equal, *found))


def test_a_function_is_checked_too_and_the_check_leaves_no_numbers_in_a_layer(monkeypatch):
    class Scaled(Head):
        scale = None

        def chunk_logits(self, features, tensors, random_state):
            if self.scale is None:
                self.scale = features.detach().abs().mean().item()
            return linear(features, tensors["weight"]) / self.scale

    class Random(Pointwise):
        def __init__(self):
            super().__init__()
            self.a = random.random()

        def apply_to(self, z, tensors):
            return z + self.a * z.tanh()

    assert build(Scaled).scale is None
    monkeypatch.setitem(POINTWISE._classes, "random", Random)
    with pytest.raises(UserError, match="Random: built twice"):
        build_head("softmax", num_classes=M, feature_dim=F, pointwise="random")
