"""What surrounds a loss changes no gradient: checkpoints, hooks, compilation, doubles, FSDP."""

import gc

import pytest
import torch
from torch.autograd import gradgradcheck
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.heads.cases import MIXTAPE, STRUCTURES, make_features
from tests.heads.toys import Bend
from tests.losses.implementations import CLASSES, FULL, TARGET, TOKENS, WEIGHT, memory_for

without_triton = pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])


@without_triton
def test_refilled_buffers_and_checkpointing_give_the_same_gradients(case, reduction, impl):
    """Within non-reentrant checkpointing a loss is computed once more, and not once a block."""
    head = case.build(classes=CLASSES)
    memory, gradients, calls = memory_for(head, 2, impl), [], []
    for way in ("plain", "refilled", "checkpointed"):
        head.zero_grad()
        target, weight = TARGET.clone(), WEIGHT.clone()
        options = {"weight": weight, "impl": impl, "reduction": reduction, "memory": memory}

        def loss(x, target=target, options=options):
            calls.append(1)
            return head.nll(x.tanh(), target, **options).loss.sum()

        features = make_features(TOKENS).requires_grad_()
        is_wrapped = way == "checkpointed"
        out = checkpoint(loss, features, use_reentrant=False) if is_wrapped else loss(features)
        in_forward = len(calls)
        if way == "refilled":
            target.fill_(1)
            weight.fill_(9.0)
        out.backward()
        gradients.append([features.grad, *(p.grad for p in head.parameters())])
    assert (in_forward, len(calls)) == (3, 4)  # the last once more, in its backward pass
    for others in gradients[1:]:
        torch.testing.assert_close(others, gradients[0], rtol=0, atol=0)


@without_triton
@pytest.mark.parametrize("case", [*STRUCTURES, MIXTAPE.with_options(frequent=0)], ids=str)
def test_no_tensor_outlives_a_step(case, impl):
    """Train Mixtape without gates of its own, too: parts of its graph get no gradient."""
    head, counts = case.build(classes=CLASSES), []
    gc.freeze()  # what was there before is neither visited nor counted
    for _ in range(4):
        head.nll(make_features(TOKENS), TARGET, reduction="sum", impl=impl).loss.backward()
        gc.collect()
        counts.append(sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects()))
    assert counts[-1] == counts[1]


# -- gradients of gradients -----------------------------------------------------------------------

FUNCTIONS = [("monotone_mlp", {"units": 2}), ("plif", {"knots": 6, "bound": 3.0}),
             ("gss", {"learn": True}), ("identity", {})]  # fmt: skip
CASES = [s.with_pointwise(f, **of) for s, (f, of) in zip(STRUCTURES, FUNCTIONS, strict=True)]
LABELS = torch.tensor([4, 1, 4])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_differentiable_twice(case):
    head = case.build()
    names = [name for name, _ in head.named_parameters()]
    options = {"weight": WEIGHT[:3], "label_smoothing": 0.2, "reduction": "sum"}

    def loss(features, *parameters):
        named, given = dict(zip(names, parameters, strict=True)), (features, LABELS)
        return torch.func.functional_call(head, named, given, {**options, "impl": "reference"}).loss

    assert gradgradcheck(loss, (make_features(3).requires_grad_(), *head.parameters()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_gradients_are_refused(case, reduction, impl):
    head, features = case.build(), make_features(3).requires_grad_()
    loss = head.nll(features, LABELS, impl=impl, reduction=reduction).loss.sum()
    with pytest.raises(RuntimeError, match="impl='reference'"):
        torch.autograd.grad(loss, features, create_graph=True)[0].sum().backward()


# -- torch.compile --------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.trunk, self.head = torch.nn.Linear(4, 4).double(), head

    def forward(self, inputs, impl):
        return self.head.nll(self.trunk(inputs).tanh(), TARGET, label_smoothing=0.1,
                             reduction="sum", impl=impl).loss  # fmt: skip


def gradients(net, function, impl):
    net.zero_grad()
    function(make_features(TOKENS), impl).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}


@pytest.mark.parametrize("impl", ["reference", "chunked", "fused", "cpp"])
@pytest.mark.parametrize("part", ["everything", "function"])
def test_a_compiled_model_has_the_same_gradients(case, part, impl, monkeypatch):
    """Compile `apply_to` alone, too, as docs/howto/own_layer.md says."""
    net, compiled = Net(case.build(classes=CLASSES)), torch.compile
    if part == "function":
        net.head.pointwise = Bend().double()
    want = gradients(net, net, impl)
    torch._dynamo.reset()
    if part == "function":
        apply_to = compiled(Bend.apply_to, backend="aot_eager", dynamic=True)
        monkeypatch.setattr(Bend, "apply_to", apply_to)
    function = net if part == "function" else compiled(net, backend="aot_eager")
    torch.testing.assert_close(gradients(net, function, impl), want, rtol=1e-9, atol=1e-11)


# -- numbers that the host reads ------------------------------------------------------------------


class CountReads(TorchDispatchMode):
    """Count `.item()`, `bool(tensor)` and the like, and sizes that depend on values."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        self.count += func in (aten._local_scalar_dense.default, aten.nonzero.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("impl", ["reference", "chunked", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_host_reads_no_number_per_chunk(case, dtype, reduction, impl):
    """On a CPU targets are checked, kept tokens counted, a factor of 1 found; overflow anywhere.

    Each read of a tensor's number would wait for a GPU.
    """
    head = case.build(classes=CLASSES).to(dtype)
    features, target = make_features(10 * TOKENS).to(dtype).requires_grad_(), TARGET.repeat(10)
    options = {**FULL, "weight": None, "label_smoothing": 0.0, "reduction": reduction}
    with CountReads() as reads:
        out = head.nll(features, target, impl=impl, memory=8192, **options)
        out.loss.sum().backward()
    of_loss = impl != "reference" and reduction == "sum"
    overflow = of_loss and dtype == torch.float16
    assert reads.count == 1 + (impl != "reference") + of_loss + overflow


# -- FSDP; tests/huggingface compares sharded processes with one ---------------------------------


@pytest.fixture
def mesh(tmp_path):
    meeting = f"file://{tmp_path}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@without_triton
def test_a_sharded_head_is_called_and_its_nll_refused(case, mesh, impl):
    head, features = case.build(classes=CLASSES), make_features(TOKENS)
    want = head(features, TARGET, impl=impl, reduction="sum").loss
    fully_shard(head, mesh=mesh)
    got = head(features, TARGET, impl=impl, reduction="sum").loss
    torch.testing.assert_close(got, want)
    got.backward()  # which shards the parameters again
    with pytest.raises(ValueError, match=r"call head\(features, target\) instead"):
        head.nll(features, TARGET, impl=impl)
