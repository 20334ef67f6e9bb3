"""The output layer of any model as one of our heads."""

from typing import Any

from torch import nn

from highrank_plugins.heads import Head, Softmax


def head_of(model: Any, path: str) -> Head:
    """The head of our models; for others a `Softmax` that shares the parameters of theirs.

    fairseq's Transformers have a linear `output_projection`; its LSTM has `fc_out`, or the
    embedding itself.

    Raises:
        ValueError: an adaptive softmax, or a layer of another kind; names `path`.
    """
    decoder = model.decoder
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise ValueError(
            f"{path}: an adaptive softmax has no matrix [classes, features] of its own: its rare "
            "classes are clusters of narrower ones. Train with --criterion cross_entropy to "
            "analyse the layer"
        )
    layer = getattr(decoder, "output_projection", getattr(decoder, "fc_out", None))
    if layer is None and getattr(decoder, "share_input_output_embed", False):
        layer = decoder.embed_tokens
    if isinstance(layer, Head):
        return layer
    if not isinstance(layer, (nn.Linear, nn.Embedding)):
        raise ValueError(
            f"{path}: {type(decoder).__name__} has no output layer that is known here, but "
            f"{type(layer).__name__}; known are our heads and the softmaxes of fairseq's "
            "Transformers and LSTMs"
        )
    classes, width = layer.weight.shape
    weight = nn.Parameter(layer.weight, requires_grad=False)  # the same memory
    head = Softmax(classes, width, weight=weight, bias=False)
    head.bias = getattr(layer, "bias", None)
    return head.to(layer.weight.device).eval()
