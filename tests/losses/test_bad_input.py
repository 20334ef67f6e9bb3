"""Wrong arguments of `nll`: a ValueError that names the argument, its value and what is allowed."""

import sys

import pytest
import torch

from highrank_plugins.losses.kernels.cpp.passes import check_available
from tests.heads.cases import SOFTMAX, STRUCTURES, make_features
from tests.losses.implementations import CLASSES

LONG = torch.long
CALLS = [
    # changed arguments, what the message says
    ({"impl": "chuncked"}, ["impl", "chuncked", "did you mean 'chunked'", "auto, reference"]),
    ({"impl": "quantum"}, ["impl", "quantum", "auto, reference, chunked"]),
    ({"reduction": "average"}, ["reduction", "average", "none, sum, mean"]),
    ({"reduction": "sums"}, ["reduction", "did you mean 'sum'"]),
    ({"label_smoothing": 1.0}, ["label_smoothing", "[0, 1)", "1.0"]),
    ({"label_smoothing": -0.1}, ["label_smoothing", "[0, 1)", "-0.1"]),
    ({"label_smoothing": float("nan")}, ["label_smoothing", "[0, 1)", "nan"]),
    ({"target": torch.tensor([0, CLASSES, 1])}, ["target", f"{CLASSES}", f"[0, {CLASSES})"]),
    ({"target": torch.tensor([0, 99, 1]), "impl": "reference"}, ["target", "99", "[0, 13)"]),
    ({"target": torch.tensor([-100, 0, 1])}, ["target", "-100", f"[0, {CLASSES})", "ignore_index"]),
    ({"target": torch.tensor([-1, 0, -100]), "ignore_index": -100}, ["target", "-1"]),
    ({"target": torch.zeros(2, dtype=LONG)}, ["target", "(3,)", "(2,)"]),
    ({"target": torch.zeros(3, 1, dtype=LONG)}, ["target", "(3,)", "(3, 1)"]),
    ({"target": torch.zeros(3)}, ["target", "int64", "float32"]),
    ({"target": torch.zeros(3, dtype=torch.int32)}, ["target", "int64", "int32"]),
    ({"weight": torch.ones(2)}, ["weight", "(3,)", "(2,)"]),
    ({"target": [0, 1, 2]}, ["target", "expected a tensor, got list"]),
    ({"target": torch.zeros(3, dtype=LONG, device="meta")}, ["target", "on cpu", "meta"]),
    ({"weight": torch.ones(3, device="meta")}, ["weight", "on cpu", "meta"]),
    ({"weight": torch.ones(())}, ["weight", "(3,)", "()"]),
    ({"weight": torch.ones(CLASSES)}, ["weight", "(3,)", "a weight per class is weight[target]"]),
    ({"memory": 8}, ["memory", "8 bytes", "one token"]),
    ({"memory": 0}, ["memory", "above 0", "None", "0"]),
    ({"memory": 0, "impl": "reference"}, ["memory", "above 0", "0"]),
    ({"memory": -5, "impl": "reference"}, ["memory", "above 0", "-5"]),
    ({"features": torch.zeros(3, 5)}, ["features", "4", "(3, 5)"]),
    ({"features": torch.zeros(3, 4)}, ["features", "float32", "float64", "torch.autocast"]),
    ({"features": torch.zeros(3, 4, dtype=LONG)}, ["features", "float32", "int64"]),
    ({"features": torch.zeros(3, 4).to(torch.float8_e4m3fn)}, ["features", "float8"]),
]


def call(case, **changed):
    arguments = {"features": make_features(3), "target": torch.tensor([0, 1, 2]), **changed}
    return case.build(classes=CLASSES).nll(**arguments)


@pytest.mark.parametrize("changed, words", CALLS, ids=lambda x: "+".join(x))
def test_messages_name_the_argument(changed, words):
    for case in STRUCTURES:
        with pytest.raises(ValueError, match=f"^{words[0]}") as error:
            call(case, **changed)
        for word in words:
            assert word in str(error.value)


def test_parameters_of_different_dtypes_are_refused():
    head = STRUCTURES[3].build(classes=CLASSES)
    head.gate_hidden.float()
    with pytest.raises(ValueError, match=r"the parameter gate_hidden.weight is torch.float32"):
        head(make_features(3))


def test_the_message_about_memory_says_how_much_is_needed():
    for case in STRUCTURES:
        with pytest.raises(ValueError, match="memory") as error:
            call(case, memory=8)
        needed = max(int(word.rstrip(";")) for word in str(error.value).split()
                     if word.rstrip(";").isdigit())  # fmt: skip
        assert call(case, memory=needed).loss.shape == (3,)
        with pytest.raises(ValueError, match="one token"):
            call(case, memory=needed - 1)


def test_an_ignored_target_may_be_anything(reduction):
    for case in STRUCTURES:
        for outside in (-100, CLASSES + 5):
            out = call(case, target=torch.tensor([0, outside, 2]), ignore_index=outside,
                       reduction=reduction)  # fmt: skip
            assert torch.isfinite(out.loss).all()


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # import triton raises ImportError
    head = SOFTMAX.build()
    with pytest.raises(ValueError, match=r"^impl: 'triton' needs the package triton") as error:
        head.nll(make_features(3), torch.tensor([0, 1, 2]), impl="triton")
    assert "pip install" in str(error.value) and "impl='fused'" in str(error.value)


@pytest.mark.parametrize("impl", ["fused", "triton"])
def test_a_head_without_a_fused_loss_is_refused(impl, monkeypatch):
    head = SOFTMAX.build()
    monkeypatch.setattr(type(head), "fused", None)
    with pytest.raises(ValueError, match="softmax has no fused loss; use impl='chunked'"):
        head.nll(make_features(3), torch.tensor([0, 1, 2]), impl=impl)


def test_a_device_other_than_a_cpu_is_refused_by_cpp():
    with pytest.raises(ValueError, match="'cpp' needs a CPU, but the features are on cuda"):
        check_available(torch.device("cuda"))
