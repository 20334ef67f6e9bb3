"""The models of docs/howto/nanogpt.md and pytorch.md train; the first changes nanoGPT's."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from highrank_plugins.heads import build_head
from tests.docs import examples
from tests.free_port import free_address

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGE, PYTORCH = HOWTO / "nanogpt.md", HOWTO / "pytorch.md"
CONFIG = SimpleNamespace(vocab_size=11, n_embd=16)
# The trunk is a stand-in. What the page changes, and what it says stays, is as in nanoGPT.
MODEL = """\
import torch
from torch import nn
from torch.nn import functional as F

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(config.vocab_size, config.n_embd)})
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.transformer.wte(idx).cumsum(1)
        if targets is not None:
            logits = self.lm_head(x)
            LOSS
        else:
            logits = self.lm_head(x[:, [-1], :])
            loss = None
        return logits, loss
""".replace(
    "LOSS",
    "loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)",
)


def change(source: str) -> str:
    """Replace the lines that the page takes away by those that it adds."""
    diff, *_ = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (added,) = re.findall(r"\A\+(.*\n)", diff)
    changed = added + source
    for part in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.MULTILINE):
        old, new = (re.sub(r"(?m)^[-+]", "", lines) for lines in part)
        assert changed.count(old) == 1, f"no such lines to replace: {old}"
        changed = changed.replace(old, new)
    return changed


def model_of(source: str) -> torch.nn.Module:
    names: dict = {}
    exec(source, names)
    torch.manual_seed(0)
    return names["GPT"](CONFIG)


@pytest.fixture
def text():
    return torch.arange(60).remainder(7).view(6, 10)


def test_the_changed_model_learns_and_generates_and_a_softmax_has_the_loss_of_the_original(text):
    model = model_of(change(MODEL))
    assert type(model.lm_head).__name__ == "MixtureOfSoftmaxes"
    assert model.transformer.wte.weight is model.lm_head.weight
    losses = learn(lambda *given: model(*given)[1], text, model.parameters(), -1, 60, enabled=False)
    assert losses[-1] < losses[0] / 2
    logits, _ = model(text[:, :-1])
    assert logits.shape == (6, 1, CONFIG.vocab_size)
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(6, 1), rtol=0, atol=1e-5)
    mos, softmax = r'"mos", (.*?),\s+components=4, context_scale=4.0', r'"softmax", \1'
    ours, theirs = model_of(re.sub(mos, softmax, change(MODEL))), model_of(MODEL)
    ours.load_state_dict(theirs.state_dict())
    target = text[:, 1:].clone()
    target[0] = -1
    torch.testing.assert_close(ours(text[:, :-1], target)[1], theirs(text[:, :-1], target)[1])


def test_the_gpt_of_the_page_learns_and_generates(tmp_path, monkeypatch, capsys):
    source = examples(PAGE)["gpt"]
    (tmp_path / "input.txt").write_text("a head is no matrix. " * 20, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    smaller = {"dim=128": "dim=32", "layers=4": "layers=1", "2_000": "40", "200)": "20)"}
    for old, new in smaller.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    torch.manual_seed(0)
    names: dict = {}
    exec(source, names)
    assert names["loss"] < 3 < torch.tensor(256.0).log()
    assert names["model"].head.weight is names["model"].embedding.weight
    assert len(capsys.readouterr().out) > 15


CAPS = {  # of the section on other code: what the original does with its logits
    "x-transformers": lambda z: z + z.sigmoid().log(),
    "nanochat": lambda z: 15 * torch.tanh(z / 15),
    "modded-nanogpt": lambda z: 23 * torch.sigmoid((z + 5) / 7.5),
    "ReaLLM-Forge": lambda z: 30 * torch.tanh(z / 30),
}


@pytest.mark.parametrize("name", CAPS)
def test_the_lines_for_other_code_have_its_loss(name):
    section = PAGE.read_text().partition("## Replace these lines")[2]
    (diff,) = re.findall(rf"\*\*\[{name}\].*?```diff\n(.*?)```", section, re.DOTALL)
    added = " ".join(line[1:].strip() for line in diff.splitlines() if line.startswith("+"))
    # the section says that the cap of modded-nanogpt is sigmoid_cap, with its defaults
    built = re.findall(r"build_head\(.*?\)", added) or [
        'build_head("sigmoid_cap", num_classes=30, feature_dim=8, bias=False)'
    ]
    (loss,) = re.findall(r"[\w.]*\.nll\(.*?\)\.loss", added)
    torch.manual_seed(0)
    config = SimpleNamespace(vocab_size=30, n_embd=8, final_logit_softcapping=30.0)
    words = built[0].replace("20000", "30").replace("512", "8")
    head = eval(words, {"build_head": build_head, "config": config}).double()
    x, tokens = 9 * torch.randn(1, 6, 8).double(), torch.randint(30, (1, 7))
    self, targets = SimpleNamespace(lm_head=head, head=head), tokens[:, 1:]
    names = {"self": self, "head": head, "x": x, "features": x, "tokens": tokens}
    names |= {"targets": targets, "target_seq": targets[0], "loss_reduction": "mean"}
    found = eval(loss, names)
    logits = CAPS[name](x @ head.weight.t())[0]
    how = "none" if found.dim() else "mean"
    torch.testing.assert_close(found, F.cross_entropy(logits, targets[0], reduction=how))


# -- docs/howto/pytorch.md: its model trains in each of the ways that the page names ---------------


@pytest.fixture
def model() -> torch.nn.Module:
    names: dict = {}
    exec(examples(PYTORCH)["language_model"], names)
    torch.manual_seed(0)
    return names["LanguageModel"](words=30, dim=8)


def learn(model, text, parameters=None, ignored=-100, steps=40, **autocast) -> list[float]:
    optimizer = torch.optim.Adam(parameters or model.parameters(), lr=0.03)
    target = text[:, 1:].clone()
    target[0, :3] = ignored
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


def test_the_example_learns_in_half_precision_compiled_and_in_a_process_group(model, text):
    torch.manual_seed(0)
    other, third = (model.__class__(words=30, dim=8) for _ in range(2))
    third.load_state_dict(other.state_dict())
    # on a CPU without AVX-512 the page's remedy is needed
    with torch.backends.mkldnn.flags(enabled=torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        losses = learn(model, text, enabled=True)
    assert losses[-1] < losses[0] / 2
    first = learn(torch.compile(other, backend="eager"), text, steps=1, enabled=False)
    where = {"init_method": free_address(), "rank": 0, "world_size": 1}
    torch.distributed.init_process_group("gloo", **where)
    try:
        losses = learn(DistributedDataParallel(third), text, enabled=False)
    finally:
        torch.distributed.destroy_process_group()
    assert first == pytest.approx(losses[:1], rel=1e-5)
    assert losses[-1] < losses[0] / 2


def test_the_example_learns_and_predicts_after_it_is_saved_and_loaded(model, text, tmp_path):
    losses = learn(model, text, enabled=False)
    assert losses[-1] < losses[0] / 2
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = model.__class__(words=30, dim=8)
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    values, classes = other.eval()(text)
    assert values.shape == classes.shape == (6, 5)
    torch.testing.assert_close(values, model.eval()(text)[0])
    after = (text[:, -1] + 1).remainder(7)
    assert (classes[:, 0] == after).all()


def test_the_lines_of_the_page_on_layers_run():
    page = PYTORCH.parents[1] / "reference" / "heads.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    names: dict[str, object] = {}
    exec(code, names)
    calls = re.findall(r"`(build_head\(.*?), …\)`", page.read_text())
    assert len(calls) >= 11
    for call in calls:
        exec(f"{call}, num_classes=2_000, feature_dim=16)", names)
