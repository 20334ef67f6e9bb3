"""`torch.compile` of the trunk, or of everything: the numbers are those of eager mode."""

import pytest
import torch

from highrank_plugins.heads import Pointwise
from tests.heads.cases import STRUCTURES, make_features
from tests.losses.implementations import CLASSES, TARGET, TOKENS


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
@pytest.mark.parametrize("part", ["trunk", "everything"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_compiled_model_has_the_same_gradients(case, part, impl):
    net = Net(case.build(classes=CLASSES))
    want = gradients(net, net, impl)
    torch._dynamo.reset()
    if part == "trunk":
        net.trunk.forward = torch.compile(net.trunk.forward, backend="aot_eager")
        got = gradients(net, net, impl)
    else:
        got = gradients(net, torch.compile(net, backend="aot_eager"), impl)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


class Bent(Pointwise):
    """Apply f(z) = z + a tanh(z). It is not registered, since other tests try all functions."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(0.5).double())

    def apply_to(self, z, tensors):
        return z + tensors["a"] * z.tanh()


@pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])
def test_a_function_may_be_compiled_by_itself(impl, monkeypatch):
    """Compile `apply_to` alone, as docs/howto/own_layer.md says."""
    net = Net(STRUCTURES[1].build(classes=CLASSES))
    net.head.pointwise = Bent()
    want = gradients(net, net, impl)
    torch._dynamo.reset()
    compiled = torch.compile(Bent.apply_to, backend="aot_eager", dynamic=True)
    monkeypatch.setattr(Bent, "apply_to", compiled)
    got = gradients(net, net, impl)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
