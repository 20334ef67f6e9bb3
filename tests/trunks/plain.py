"""An LSTM in NumPy, one step after another, from the equations (gates in torch's order i f g o)."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, h, c, weights):
    """Return outputs [T, B, H] and the last h, c [B, H] of x [T, B, I]; weights as in torch."""
    w_ih, w_hh, b_ih, b_hh = weights
    outputs = []
    for step in x:
        i, f, g, o = np.split(step @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs), h, c


def weights_of(layer, recurrent=None):
    """Return the arrays of a torch LSTM, with `recurrent` as its recurrent matrix."""
    found = [p.detach().numpy() for p in layer.parameters()]
    if recurrent is not None:
        found[1] = recurrent.detach().numpy()
    return found
