"""Trust compiled kernels once they have been seen right on a device.

At their first use they compute a chunk of a few random tokens, as they are launched for the layer.
Scores and gradients are compared with torch's operations in float64; what these lose in the
kernels' own dtype says how much may be lost. The tokens are ours, so that no data decides. A
verdict holds for one process.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from highrank_plugins.common.provenance import hardware
from highrank_plugins.losses.fused import FusedLogits, FusedMixture, LossChunk
from highrank_plugins.losses.kernels.compiled import CompiledKernels, Untrusted
from highrank_plugins.losses.kernels.torch import Kernels
from highrank_plugins.losses.mixtape import FusedMixtape
from highrank_plugins.losses.plan import Named, TreeBlock
from highrank_plugins.losses.weighted import Target, TargetKernels
from highrank_plugins.own_layers.ours import is_ours

logger = logging.getLogger(__name__)

# losses that are tried, and their passes; the contract of own layers compares other ones
PASSES = {FusedLogits: "softmax", FusedMixture: "mixture", FusedMixtape: "tree and softmax"}
TOKENS = 9  # of a trial: more than share a program
NUMBERS = 2**20  # of its logits, but for two tokens
LEAST = 0.1  # label smoothing and z-loss of a trial: small ones are not seen in half precision
SLACK = 8.0  # errors that are allowed, as a multiple of torch's own
# errors that are always allowed, see `_error`; torch's own may be small by luck
FLOORS = {
    torch.float64: 1e-10, torch.float32: 2**-14, torch.float16: 2**-9, torch.bfloat16: 2**-7,
}  # fmt: skip
OF_SCORES = {torch.float64: 2.5e-11, torch.float32: 2**-18}  # by the dtype that scores have
MIXED = 2**-4  # of a mixed logit in half precision, which rounding may move to a neighbour
RIGHT = "right"  # text of a verdict; others say what is wrong


class Finding(NamedTuple):
    """Hold what was found, and the error that is nearest to what is allowed, or above it."""

    text: str = RIGHT
    error: float = 0.0
    allowed: float = 1.0


verdicts: dict[tuple[torch.device, str], Finding] = {}  # of this process, by device and case


def check(loss: Any, gradient: bool) -> None:
    """Raise `Untrusted` if a loss has kernels that are wrong here."""
    plan, device = loss.plan, loss.plan.features.device
    recording = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    ours = type(loss) in PASSES and (not plan.own or is_ours(plan.head.pointwise))
    # a single class has no gradient to compare
    if not ours or plan.head.num_classes == 1 or device.type == "meta" or recording:
        return
    key = device, _case(loss, gradient)
    if key not in verdicts:
        verdicts[key] = _verdict(_Trial(loss, gradient), key[1])
    if (text := verdicts[key].text) != RIGHT:
        raise Untrusted(text)


def _case(loss: Any, gradient: bool) -> str:
    """Name what the kernels of a loss are launched for: all that decides on their code."""
    kernels, plan, has_tree = loss.kernels, loss.plan, type(loss) is FusedMixtape
    flags = {
        "by torch": kernels.by_torch, "smoothing": plan.smooth, "z-loss": plan.z_loss > 0,
        "accuracy": plan.accuracy, "entropy": plan.entropy, "bias": loss.bias is not None,
        "gradient": gradient, "of f": kernels.sums_tables, "product": kernels.computes_gates,
        "noise": has_tree and plan.random_state.noise_sd > 0, "weights": plan.soft is not None,
    }  # fmt: skip
    components = plan.head.components if loss.holds_components else 1
    parts = (*kernels.function[:2], str(kernels.chunk_dtype)[6:], f"K={components}",
             f"M={plan.head.num_classes}", f"S={plan.head.frequent if has_tree else 0}",
             *(name for name, given in flags.items() if given))  # fmt: skip
    return f"{kernels.impl!r} ({PASSES[type(loss)]}, {', '.join(map(str, parts))})"


@cache
def warn(verdict: str) -> None:
    """Say once that another implementation computes the loss."""
    logger.warning("The loss is computed by 'fused', which is slower: %s", verdict)


def _verdict(trial: _Trial, case: str) -> Finding:
    """Try the kernels; return what was found, with the kernels' name, the machine and a remedy."""
    try:
        found = trial.compare()
    except Untrusted as error:  # it does not compile
        return Finding(str(error))
    except torch.OutOfMemoryError:
        return Finding()
    if found.text != RIGHT:
        wrong = f"impl: {case} is wrong on {_machine(trial.kernels)}: {found.text}"
        remedy = "please report this line, and choose impl='fused' (--head-loss fused)"
        found = found._replace(text=f"{wrong}; {remedy}")
    return found


def _machine(kernels: CompiledKernels) -> str:
    device, name, driver = kernels.plan.features.device, hardware()["processor"], ""
    if device.type == "cuda":
        name, path = torch.cuda.get_device_name(device), Path("/proc/driver/nvidia/version")
        driver = f"{path.read_text().splitlines()[0]}, " if path.is_file() else ""
    return f"{name} ({driver}torch {torch.__version__}, {kernels.version()})"


class _Trial:
    """Compute the loss of random tokens by several sets of kernels.

    The contexts are unit vectors, so that products are exact: the logits of a component of a token
    are a column of the vocabulary matrix, and the gradient of the column is that of the logits.
    """

    def __init__(self, loss: Any, gradient: bool) -> None:
        self.loss, self.kernels, self.gradient = loss, loss.kernels, gradient
        self.plan, self.head, kernels = loss.plan, loss.plan.head, loss.kernels
        self.function, self.dtype = kernels.function, kernels.chunk_dtype
        self.has_tree = type(loss) is FusedMixtape
        self.frequent = self.head.frequent if self.has_tree else 0
        self.components = self.head.components if loss.holds_components else 1
        self.noisy = self.has_tree and self.plan.random_state.noise_sd > 0

    def compare(self) -> Finding:
        """Return the largest error of the kernels, by its share of the allowed one."""
        self._prepare()
        found = self._run(type(self.kernels), self.dtype)
        of_torch, truth = (self._run(self._torch, d) for d in (self.dtype, torch.float64))
        worst = Finding()
        for name, ours in found.items():
            is_score = not name.startswith("gradient")  # scores are exacter than sums of products
            floor = OF_SCORES[self.kernels.wide] if is_score else FLOORS[self.dtype]
            if is_score:  # of sums over all classes
                floor = max(floor, self.head.num_classes * 2.0**-30)
            if self.has_tree and self.dtype.itemsize == 2:
                floor = max(floor, MIXED)
            error, own = (_error(name, t, truth[name]) for t in (ours, of_torch[name]))
            allowed = max(floor, SLACK * own)
            if error / allowed >= worst.error / worst.allowed:
                wrong = f"{name} has an error of {error:.1e}, where torch's is {own:.1e}"
                worst = Finding(RIGHT if error <= allowed else wrong, error, allowed)
        return worst

    def _torch(self, *given: Any) -> Kernels:
        """Return torch's kernels, which keep mixed logits in the dtype of the others' chunks."""
        dtype = self.dtype

        class RoundedKernels(Kernels if self.plan.soft is None else TargetKernels):  # type: ignore[misc]  # a base by plan
            def tree_forward(self, tree: TreeBlock, out_NS: Tensor) -> None:
                super().tree_forward(tree, out_NS)
                out_NS.copy_(out_NS.to(dtype))

        return RoundedKernels(*given)

    def _draw(self, *shape: int) -> Tensor:
        """Return normal numbers in float64 that fit every dtype."""
        wide = torch.float64
        drawn = torch.randn(*shape, generator=self.random, dtype=wide, device="cpu")
        return drawn.bfloat16().double().to(self.plan.features.device)

    def _prepare(self) -> None:
        """Draw what a chunk is given, neither with numbers of a layer's start nor a user's."""
        plan, head, count = self.plan, self.head, self.components
        if self.kernels.by_torch:
            head = object.__new__(type(head))  # copy() refuses a parametrised matrix
            parts = {**self.head._modules, "pointwise": _ByTorch()}
            vars(head).update(vars(self.head), _modules=parts)
        self.random = torch.Generator("cpu").manual_seed(1)
        self.noise = plan.features.new_empty(0)
        self.tokens = min(TOKENS, max(2, NUMBERS // (head.num_classes * count)))
        noise = SimpleNamespace(rows=lambda a, b: SimpleNamespace(
            fill_with_noise=lambda gates: self.noisy and gates.copy_(self.noise[:, a:b]) is gates
        ))  # fmt: skip
        given = {"weight": self._draw(self.tokens, head.num_classes).abs() / head.num_classes}
        leading = torch.Size([self.tokens])
        self.plan = replace(
            plan, head=head, weight=None, ignored=None, filter_gradients=False, memory=None,
            soft=None if plan.soft is None else Target(_weighed, given, leading), label=None,
            label_smoothing=max(LEAST, plan.label_smoothing) if plan.smooth else 0.0,
            z_loss=LEAST if plan.z_loss else 0.0, random_state=noise,
        )  # fmt: skip
        self.target = torch.randint(
            head.num_classes, (self.tokens,), generator=self.random, device="cpu"
        ).to(plan.features.device)
        self.factor = self._draw(self.tokens).abs() + 0.5
        self.factor[-1] = 0.0  # an ignored token
        units = torch.eye(self.tokens * count, dtype=torch.float64, device=self.target.device)
        self.given, self.tensors = {"contexts": units.unflatten(0, (-1, count))}, self._tables()
        if self.loss.bias is not None:  # a product would round its sum with the logits
            of_pass = self.kernels.adds_bias or self.has_tree
            self.tensors["bias"] = of_pass * self._draw(head.num_classes) / 2
        if self.has_tree:
            self.given["mixed"] = units[::count]
            if count > 1:
                self._draw_gates(count - 1)
        elif count > 1 or type(self.loss) is FusedMixture:
            self.given["log_prior"] = self._draw(self.tokens, count).log_softmax(-1)
        else:
            self.given["contexts"] = units
        self.tensors["weight"] = self._logits().flatten(0, 1).t()

    def _tables(self) -> Named:
        """Return learned numbers of f."""
        family, numbers, names = self.function
        # of multimax; in these signs, terms of f' do not cancel
        at, strengths = self._draw(4) / 2, self._draw(4).abs() / 20
        tables = [at, strengths * strengths.new_tensor([-1, 1, -1, 1])]
        if family == "plif":
            bound, width = numbers
            cells = round(2 * bound / width)
            # mixed logits lie near borders of cells, where rounding decides on f' if slopes differ
            slopes = 0.75 + self._draw(1 if self.has_tree else cells).abs().expand(cells)
            tables = [slopes, width * (slopes.cumsum(0) - slopes)]
        return {f"pointwise.{name}": table for name, table in zip(names, tables, strict=False)}

    def _draw_gates(self, count: int) -> None:
        """Draw gates whose products and sums are exact, too."""
        size, common = self.head.gate_dim, self.frequent
        units = torch.arange(self.tokens * count, device=self.target.device) % size
        hidden = nn.functional.one_hot(units, size).view(self.tokens, count, size)
        self.given |= {"hidden": hidden, "shared": self._draw(self.tokens, count).round()}
        self.tensors["gate_shared.weight"] = self._draw(count, 1)
        self.tensors["gate_embed"] = self._draw(common, size).mul(4).round() / 4
        if self.loss.has_gate_bias:
            self.tensors["gate_bias"] = self._draw(common, count).mul(4).round() / 4
        self.noise = self._draw(count, self.tokens, common).mul(4).round() / 4

    def _logits(self) -> Tensor:
        """Return logits [N, K, M]: one row is steep, and the targets of half of them win."""
        shape = (self.tokens, self.components, self.head.num_classes)
        logits = 3 * self._draw(*shape)
        logits[1] *= 1 if self.has_tree else 6
        winners = torch.arange(0, self.tokens, 2, device=logits.device)
        logits[winners, :, self.target[winners]] += 4
        logits = logits.bfloat16().double()
        for _ in range(9 * (self.function.family == "plif")):
            bound, width = self.function.numbers  # at borders of cells, rounding decides on f'
            at = (logits + self.tensors.get("bias", 0) + bound) / width
            is_border = (at - at.floor() - 0.5).abs() > 0.4
            logits = torch.where(is_border, 2 * self._draw(*shape), logits)
        return logits

    def _run(self, kernels: Any, compute: torch.dtype) -> Named:
        wide = torch.promote_types(compute, torch.float32)
        sums = {
            name: torch.zeros_like(t, dtype=torch.float64 if "pointwise" in name else wide)
            for name, t in self.tensors.items()
            if self.gradient and (self.kernels.sums_tables or "pointwise" not in name)
        }
        given = {n: t.to(wide if n == "log_prior" else compute) for n, t in self.given.items()}
        grads = {name: torch.zeros_like(t) for name, t in given.items()} if self.gradient else {}
        factor = self.factor.to(wide) if self.gradient else None
        loss = type(self.loss)(self.plan, self.tensors, sums, kernels, compute)
        target = self.target if self.plan.soft is None else torch.arange(self.tokens, device="cpu")
        scores = loss.chunk(LossChunk(given, target, factor, grads, 0))
        loss.finish()
        found = {n.rpartition("_")[0]: t for n, t in scores._asdict().items() if t is not None}
        return found | {f"gradient of {name}": t for name, t in (grads | sums).items()}


def _weighed(log_probs: Tensor, given: Named) -> tuple[Tensor, Tensor]:
    """Return the loss of given weights of classes, and the weights."""
    weight = given["weight"].to(log_probs)
    return -(weight * log_probs).sum(-1), weight


class _ByTorch(nn.Module):
    """Stand in for a function that the kernels do not know."""

    kernel_function, is_identity = None, False

    def prepare_vjp(self, *_: Any) -> Any:
        return lambda z: (z, lambda grad: grad)


def _error(name: str, found: Tensor, truth: Tensor) -> float:
    """Return the largest error, relative to an entry, the mean and a share of the largest."""
    if not truth.numel():
        return 0.0
    size, apart = truth.double().abs(), (found.double() - truth.double()).abs()
    # A target's gradient P − 1 is a difference of large numbers. Few cells of a table are met.
    some = size.max() if "pointwise" in name else size.mean() + size.max() / 128
    return float((apart / (size + some + 1e-30)).nan_to_num(torch.inf).max())
