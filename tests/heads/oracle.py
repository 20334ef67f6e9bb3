"""Compute every output layer and its loss in slow NumPy, straight from the papers' formulas.

Nothing here is shared with the package. Written for one context at a time, with loops where the
formulas have indices, and for complex numbers as well: the imaginary part of `f(x + i*1e-40)` is
the derivative of f to the last digit (complex step), so gradients are compared as strictly as
values.

Parameters are a dict of arrays under the names of the heads' `state_dict`. K components, S
frequent classes, M classes; g is one feature vector.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Options = Mapping[str, Any]


def lse(x: np.ndarray) -> Any:
    top = x.real.max()
    return top + np.log(np.exp(x - top).sum())


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - lse(x)


def softplus(x: Any) -> Any:
    """Return log(1 + e^x)."""
    flip = np.where(np.real(x) > 0, -1.0, 1.0)
    return np.where(np.real(x) > 0, x, 0) + np.log1p(np.exp(flip * x))


def log_sigmoid(x: Any) -> Any:
    return -softplus(-x)


# ---- pointwise functions: f(z, parameters, options) --------------------------------------------


def identity(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    return z


def sigsoftmax(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    """Return f with e^f(z) = e^z sigmoid(z)."""
    return z + log_sigmoid(z)


def gss(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    c, k = options.get("c", -1.5), options.get("k", 2.5)
    if options.get("learn"):
        c, k = p["pointwise.c"], np.exp(p["pointwise.log_k"])
    return k * (z - c) + c - (k - 1) * softplus(z - c)


def plif(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    slopes = softplus(p["pointwise.slope_logits"])
    bound = options.get("bound", 20.0)
    width = 2 * bound / len(slopes)
    result = np.empty(z.shape, dtype=np.result_type(z, slopes))
    for at, x in np.ndenumerate(z):
        cell = int(np.clip(np.floor((x.real + bound) / width), 0, len(slopes) - 1))
        result[at] = slopes[cell] * (x + bound - cell * width) + width * slopes[:cell].sum()
    return result


def monotone_mlp(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    steep, height = softplus(p["pointwise.in_logits"]), softplus(p["pointwise.out_logits"])
    total = p["pointwise.out_bias"] + 0 * z
    for u, shift, v in zip(steep, p["pointwise.in_bias"], height, strict=True):
        total = total + v * np.exp(log_sigmoid(u * z + shift))
    return total


def softcap(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    cap = options.get("cap", 30.0)
    return cap * np.tanh(z / cap)


def sigmoid_cap(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    height, shift, scale = (options[name] for name in ("height", "shift", "scale"))
    return height * np.exp(log_sigmoid((z + shift) / scale))


def multimax(z: np.ndarray, p: Arrays, options: Options) -> np.ndarray:
    total = z
    for i, (at, strength) in enumerate(
        zip(p["pointwise.thresholds"], p["pointwise.strengths"], strict=True)
    ):
        beyond = z - at if i % 2 else at - z
        total = total + strength * np.where(beyond.real > 0, beyond, 0) ** (1 + i // 2)
    return total


POINTWISE = {
    f.__name__: f
    for f in (identity, sigsoftmax, gss, plif, monotone_mlp, softcap, sigmoid_cap, multimax)
}


# ---- structures: log-probabilities of one context ----------------------------------------------


def contexts(p: Arrays, g: np.ndarray, options: Options) -> list[np.ndarray]:
    """Return h_k = s tanh(A_k g + a_k); component k owns rows k*d .. (k+1)*d - 1."""
    d = p["weight"].shape[1]
    h = options.get("context_scale", 1) * np.tanh(p["latent.weight"] @ g + p["latent.bias"])
    return [h[k * d : (k + 1) * d] for k in range(len(h) // d)]


def output(p: Arrays, h: np.ndarray) -> np.ndarray:
    return p["weight"] @ h + p.get("bias", 0)


def softmax(p: Arrays, g: np.ndarray, f: Callable, options: Options) -> np.ndarray:
    return log_softmax(f(output(p, g)))


def moc(p: Arrays, g: np.ndarray, f: Callable, options: Options) -> np.ndarray:
    prior = np.exp(log_softmax(p["prior.weight"] @ g))
    mixed = sum(pi * h for pi, h in zip(prior, contexts(p, g, options), strict=True))
    return log_softmax(f(output(p, mixed)))


def mos(p: Arrays, g: np.ndarray, f: Callable, options: Options) -> np.ndarray:
    log_prior = log_softmax(p["prior.weight"] @ g)
    rows = [log_softmax(f(output(p, h))) for h in contexts(p, g, options)]
    joint = np.stack([pi + row for pi, row in zip(log_prior, rows, strict=True)])
    return np.array([lse(joint[:, x]) for x in range(joint.shape[1])])


def tree(gate_logits: np.ndarray) -> list[Any]:
    """Leaf weights of a sigmoid tree: heap nodes 1.. with children 2i (taken with sigmoid(l_i))
    and 2i+1 (taken with sigmoid(-l_i)); gate_logits[i - 1] belongs to node i."""
    leaves = len(gate_logits) + 1
    weights = []
    for leaf in range(leaves):
        node, log_weight = leaf + leaves, 0.0
        while node > 1:
            parent, right = divmod(node, 2)
            log_weight = log_weight + log_sigmoid((-1) ** right * gate_logits[parent - 1])
            node = parent
        weights.append(np.exp(log_weight))
    return weights


def softmax_gates(gate_logits: np.ndarray) -> list[Any]:
    return list(np.exp(log_softmax(np.append(gate_logits, 0))))


def gates_hidden(p: Arrays, g: np.ndarray, k: int, options: Options) -> np.ndarray:
    """t_k = tanh(U_k g + Ub_k); with weight normalisation each row of U has a constant length."""
    d2 = p["gate_embed"].shape[1]
    rows = slice(k * d2, (k + 1) * d2)
    u = p["gate_hidden.weight"][rows]
    if scale := options.get("gate_weight_norm", 0.0):
        u = np.stack([scale * row / np.sqrt((row * row).sum()) for row in u])
    hidden_bias = p["gate_hidden.bias"][rows] if "gate_hidden.bias" in p else 0
    return np.tanh(u @ g + hidden_bias)


def mixtape(p: Arrays, g: np.ndarray, f: Callable, options: Options) -> np.ndarray:
    hs = contexts(p, g, options)
    inner = len(hs) - 1
    shared = p["gate_shared.weight"] @ g + p.get("gate_shared.bias", 0)
    classes = len(p["weight"])
    frequent = options.get("frequent_classes") or range(options.get("frequent", classes // 2))
    hidden = [gates_hidden(p, g, k, options) for k in range(inner)] if frequent else []
    gates = softmax_gates if options.get("gates") == "softmax" else tree
    z = np.empty(classes, dtype=np.result_type(g, *p.values()))
    for x in range(classes):
        gate = shared.copy()
        if x in frequent:
            row = frequent.index(x)
            gate = shared + np.array([p["gate_embed"][row] @ t for t in hidden])
            gate = gate + (p["gate_bias"][row] if "gate_bias" in p else 0)
        z[x] = sum(pi * (p["weight"][x] @ h) for pi, h in zip(gates(gate), hs, strict=True))
    return log_softmax(f(z + p.get("bias", 0)))


STRUCTURES = {f.__name__: f for f in (softmax, moc, mos, mixtape)}


# ---- a batch, its loss, and gradients -----------------------------------------------------------


def log_probs(head: str, pointwise: str, p: Arrays, features: np.ndarray, options: Options,
              pointwise_options: Options) -> np.ndarray:  # fmt: skip
    def f(z: np.ndarray) -> np.ndarray:
        return POINTWISE[pointwise](z, p, pointwise_options)

    flat = features.reshape(-1, features.shape[-1])
    rows = [STRUCTURES[head](p, g, f, options) for g in flat]
    classes = len(p["weight"])
    return np.array(rows).reshape(*features.shape[:-1], classes)


def losses(log_p: np.ndarray, target: np.ndarray, weight: np.ndarray, eps: float,
           ignore_index: int | None) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Smooth labels as fairseq does, by token: (weighted smoothed loss, plain nll)."""
    loss = np.zeros(len(target), dtype=log_p.dtype)
    nll = np.zeros(len(target), dtype=log_p.dtype)
    each = eps / (log_p.shape[-1] - 1)
    for n, y in enumerate(target):
        if y != ignore_index:
            nll[n] = -log_p[n, y]
            loss[n] = weight[n] * ((1 - eps - each) * nll[n] - each * log_p[n].sum())
    return loss, nll


def gradients(function: Callable[[Arrays], Any], at: Arrays) -> dict[str, np.ndarray]:
    """Return d function / d each entry of each array, by complex steps."""
    result = {}
    for name, array in at.items():
        result[name] = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            stepped = array.astype(complex)
            stepped[index] += 1e-40j
            result[name][index] = function({**at, name: stepped}).imag / 1e-40
    return result
