"""A vocabulary split over two processes has the loss and the gradients of the whole layer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import itertools, os, re, sys, pytest, torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from highrank_plugins.heads import Head, Pointwise, build_head
from highrank_plugins.heads.vocabulary_parallel import SPLIT, VocabularyParallel
from highrank_plugins.losses import targets
from tests.largest_tensor import Largest

torch.set_num_threads(1)
rank, meeting, part = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
CLASSES, STRUCTURES = 23, {
    "softmax": {}, "mos": {"components": 3}, "moc": {"components": 3},
    "mixtape": {"components": 4, "frequent": 15, "gate_dim": 5, "gate_biases": "full"},
}
draw = torch.Generator().manual_seed(1)
x = torch.randn(7, 2, 6, generator=draw, dtype=torch.float64)
y = torch.randint(CLASSES, (7, 2), generator=draw)
y[1, 1] = -100
w = torch.rand(7, 2, generator=draw, dtype=torch.float64)

class Centred(Pointwise):
    def apply_to(self, z, tensors):
        return z - z.mean(-1, keepdim=True)

class Doubled(Pointwise):
    def apply_to(self, z, tensors):
        return 2 * z

class Own(Head):
    def chunk_logits(self, features, tensors, random_state):
        return features @ tensors["weight"].t()

def build(name, pointwise="identity", seed=0, **more):
    torch.manual_seed(seed)
    options = {"num_classes": CLASSES, "feature_dim": 6, "pointwise": pointwise}
    if name == "softmax":
        options["embed_dim"] = 6
    with torch.no_grad():
        head = build_head(name, **options | STRUCTURES[name] | more).double()
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64) * 0.3)
    return head

def compare(whole, split, **options):
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = whole.nll(theirs, y, ignore_index=-100, impl="reference", **options).loss
    found = split(ours, y, ignore_index=-100, **options)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    scale = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)).double()
    (found * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-10)
    parameters = dict(split.head.named_parameters())
    for name, parameter in whole.named_parameters():
        grad = parameters[name].grad
        grad = grad.to_local() if isinstance(grad, DTensor) else grad
        rows = parameter.grad[split.first : split.stop] if name in SPLIT else parameter.grad
        torch.testing.assert_close(grad, rows, rtol=1e-9, atol=1e-10)

def refused(message, head):
    with pytest.raises(ValueError, match=re.escape(message)):
        VocabularyParallel(head)

if part == "structures":
    functions = ("identity", "sigsoftmax", "plif", "multimax")
    for name, pointwise in itertools.product(STRUCTURES, functions):
        for count, options in enumerate((
            {"reduction": "sum"}, {"reduction": "none", "weight": w},
            {"reduction": "mean", "weight": w, "memory": 2**13},
            {"reduction": "sum", "label_smoothing": 0.2},
        )):
            split = VocabularyParallel(build(name, pointwise))
            assert split.head.weight.shape[0] == (12, 11)[rank]
            compare(build(name, pointwise), split, **options)
elif part == "tensor":
    for name in STRUCTURES:
        head, mesh = build(name, num_classes=24), init_device_mesh("cpu", (2,))
        head.weight = torch.nn.Parameter(distribute_tensor(head.weight.detach(), mesh, [Shard(0)]))
        split = VocabularyParallel(head)
        assert isinstance(split.head.weight, DTensor)
        compare(build(name, num_classes=24), split, reduction="sum")
elif part == "memory":  # no process ever holds the whole matrix, nor more logits than a chunk
    for name in STRUCTURES:
        options = {"num_classes": 1001, "feature_dim": 6, "pointwise": "multimax"}
        options |= STRUCTURES[name] | ({"frequent": 900} if name == "mixtape" else {})
        with torch.device("meta"):
            head = build_head(name, **options)
        with Largest() as seen:
            split = VocabularyParallel(head, device="cpu")
        assert seen.numel == 6 * (split.stop - split.first)
        gathered = [None, None]
        distributed.all_gather_object(gathered, split.head.state_dict())
        first, second = (state["weight"] for state in gathered)
        assert 0.05 < second.std() and second.abs().max() <= 0.1 and (first[:500] != second).all()
        state = {n: torch.cat([t, gathered[1][n]]) if n in SPLIT else t
                 for n, t in gathered[0].items()}
        whole = build_head(name, **options)
        whole.load_state_dict(state)
        compare(whole.double(), split.double(), reduction="sum")
        many, goals = torch.randn(300, 6), torch.arange(300)
        floats = 4 * split.floats * 10  # bytes of ten tokens; temporary blocks get half
        for smoothing, reduction in ((0, "sum"), (0.1, "sum"), (0, "none")):
            with Largest() as seen:
                split.float()(many, goals, reduction=reduction, label_smoothing=smoothing,
                              memory=floats).sum().backward()
            matrix = split.head.weight.numel()
            assert seen.numel <= max(5 * split.floats, matrix), (seen.numel, split.floats)
else:
    refused("Mixtape cannot be split: it must be",
            build("mixtape", class_counts=list(range(CLASSES)), frequent=3))
    refused("process 1 of the group has another head than process 0: latent.bias is",
            build("mos", components=2 + rank))
    refused("cannot be split: it must be a softmax", build("softmax", vocabulary="centred"))
    refused("pointwise.", build("softmax", "softcap" if rank else "identity"))
    refused("cannot be split over 2 processes", build("softmax", num_classes=1))
    head = build("mos", seed=rank)  # the first process's values are copied
    split = VocabularyParallel(head)
    gathered = [None, None]
    distributed.all_gather_object(gathered, head.latent.weight.tolist())
    assert gathered[0] == gathered[1]
    right = {"target": y.clamp(min=0)}
    for wrong, message in (
        ({"target": targets.labels(y)}, "a split layer learns from classes"),
        ({"reduction": "most"}, "'most'"), ({"target": y[:3]}, "target: expected shape"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            split(x, **right | wrong)
    leaf = x.clone().requires_grad_()
    loss = split(leaf, **right, reduction="sum")
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(loss, leaf, create_graph=True)
    refused("(no weight= and", build("softmax", weight=build("softmax").weight))
    refused("process 0 of the group: Own cannot be split: it must be a softmax", Own(23, 6))
    frozen = build("mos")
    frozen.latent.weight.requires_grad_(not rank)
    refused("a logit changes the values of others", build("softmax", Centred()))
    refused("latent.weight.requires_grad is False", frozen)
    for name in ("softmax", "mos"):  # a bias rules out all classes of the second process, or nearly
        for gap, smoothing, f in ((torch.inf, 0, "identity"), (900, 0.1, "identity"),
                                  (torch.inf, 0, Doubled())):
            whole, part = build(name, f), build(name, f)
            for head in (whole, part):
                head.bias.data[12:] -= gap
            y.clamp_(max=11)
            compare(whole, VocabularyParallel(part), reduction="sum", label_smoothing=smoothing)
    whole, part = (build("mixtape", Doubled()).bfloat16() for _ in range(2))
    narrow = x.bfloat16().requires_grad_()
    found = VocabularyParallel(part)(narrow, y.clamp(min=0), reduction="sum")
    found.backward()
    expected = whole.nll(narrow, y.clamp(min=0), reduction="sum").loss
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)
    split = VocabularyParallel(build("mixtape", dropout=0.5, gate_dropout=0.5, gate_noise=0.3))
    torch.manual_seed(rank)
    losses = [split(x, y, ignore_index=-100, reduction="sum") for _ in range(2)]
    drawn = torch.zeros(1, 200, 4)
    assert split._random_state(torch.zeros(200, 6)).rows(0, 200).fill_with_noise(drawn)
    distributed.all_gather_object(gathered, drawn)
    for lag in (0, 64, 128):  # blocks of 64 tokens are independent, also of the neighbour's
        assert not (gathered[0][:, lag:] == gathered[1][:, : 200 - lag]).any()
    distributed.all_gather_object(gathered, [loss.item() for loss in losses])
    assert gathered[0] == gathered[1] and gathered[0][0] != gathered[0][1]
distributed.destroy_process_group()
print("same", flush=True)
os._exit(0)  # torch's threads may abort while Python 3.13 ends
"""


@pytest.mark.parametrize("part", ["structures", "tensor", "memory", "refused"])
def test_two_processes_match_one(tmp_path, part):
    words = [str(tmp_path / "meeting"), part]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), *words], cwd=Path(__file__).parents[2],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in running:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0 and out.endswith("same\n"), error
