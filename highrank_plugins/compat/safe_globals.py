"""Checkpoints of fairseq cannot be loaded by torch >= 2.6.

What breaks: `WeightsUnpickler error: Unsupported global: GLOBAL argparse.Namespace` when a
training run resumes or a model is loaded; the same for `numpy._core.multiarray.scalar` after
`--eval-bleu`, and for `omegaconf.dictconfig.DictConfig` and
`fairseq.distributed.utils._TensorPlaceholder` when several processes resume.
Why: torch.load reads with weights_only=True, which admits tensors and plain containers only.
Fairseq stores legacy models' options as a Namespace and validation results as numpy numbers. It
sends the loaded state to the other ranks as omegaconf containers with placeholders for tensors.
What we do: admit exactly these classes. They hold data; building one runs nothing.
Delete when: fairseq stores plain containers, or registers these classes itself.
"""

import argparse
import collections
import typing

import numpy as np
import torch
from fairseq.distributed.utils import _TensorPlaceholder
from omegaconf import DictConfig, ListConfig, nodes
from omegaconf.base import ContainerMetadata, Metadata

_NUMERIC_CODES = np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"
_NUMPY = [np.ndarray, np.dtype, *{type(np.dtype(code)) for code in _NUMERIC_CODES}]
_BROADCAST = [
    _TensorPlaceholder,
    DictConfig,
    ListConfig,
    ContainerMetadata,
    Metadata,
    *(nodes.AnyNode, nodes.BooleanNode, nodes.EnumNode),
    *(nodes.FloatNode, nodes.IntegerNode, nodes.StringNode),
    # omegaconf's metadata names the types of keys and elements
    *(collections.defaultdict, typing.Any, dict, list, tuple, int, float, str, bool),
]


# what pickled numpy scalars and arrays call, under the names of numpy 2 and numpy 1
_CONSTRUCTORS = [
    (function, f"{module}.{function.__name__}")
    for function in (np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0])
    for module in ("numpy._core.multiarray", "numpy.core.multiarray")
]
torch.serialization.add_safe_globals([argparse.Namespace, *_NUMPY, *_CONSTRUCTORS, *_BROADCAST])
