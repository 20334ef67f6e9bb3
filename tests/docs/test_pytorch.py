"""docs/howto/pytorch.md: its model trains in each of the ways that the page names."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.free_port import free_port

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "pytorch.md"


@pytest.fixture
def model() -> torch.nn.Module:
    (code,) = re.findall(
        r"<!-- example: language_model -->\n```python\n(.*?)```", PAGE.read_text(), re.S
    )
    names: dict = {}
    exec(code, names)
    torch.manual_seed(0)
    return names["LanguageModel"](words=30, dim=8)


@pytest.fixture
def text() -> torch.Tensor:
    return torch.arange(60).remainder(7).view(6, 10)


def learn(model, text, steps=40, **autocast) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    target = text[:, 1:].clone()
    target[0, :3] = -100
    losses = []
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, **autocast):
            loss = model(text[:, :-1], target)
        assert loss.dtype == torch.float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("enabled", [False, True])
def test_the_example_learns_in_either_precision(model, text, enabled):
    # on a CPU without AVX-512 the page's remedy is needed
    with torch.backends.mkldnn.flags(enabled=torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        losses = learn(model, text, enabled=enabled)
    assert losses[-1] < losses[0] / 2


def test_the_example_learns_when_compiled(model, text):
    eager = learn(model, text, steps=1, enabled=False)
    torch.manual_seed(0)
    compiled = torch.compile(model.__class__(words=30, dim=8), backend="eager")
    assert learn(compiled, text, steps=1, enabled=False) == pytest.approx(eager, rel=1e-5)


def test_the_example_learns_in_a_process_group(model, text):
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    try:
        losses = learn(DistributedDataParallel(model), text, enabled=False)
    finally:
        torch.distributed.destroy_process_group()
    assert losses[-1] < losses[0] / 2


def test_the_example_predicts_after_it_is_saved_and_loaded(model, text, tmp_path):
    learn(model, text, enabled=False)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = model.__class__(words=30, dim=8)
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    values, classes = other.eval()(text)
    assert values.shape == classes.shape == (6, 5)
    torch.testing.assert_close(values, model.eval()(text)[0])
    after = (text[:, -1] + 1).remainder(7)
    assert (classes[:, 0] == after).all()


def test_the_lines_of_the_page_on_layers_run():
    page = PAGE.parents[1] / "reference" / "heads.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    names: dict[str, object] = {}
    exec(code, names)
    calls = re.findall(r"`(build_head\(.*?), …\)`", page.read_text())
    assert len(calls) >= 11
    for call in calls:
        exec(f"{call}, num_classes=2_000, feature_dim=16)", names)
