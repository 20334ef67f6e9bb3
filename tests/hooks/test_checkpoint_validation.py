"""hooks/checkpoint_validation.py: nothing in a checkpoint is executed, damage is named."""

import argparse
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from tests.compat.conftest import run_training, translation_options

ROOT = Path(__file__).parents[2]


class Call:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.fixture
def sentinel(tmp_path):
    """Return the path that every payload tries to create."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


@pytest.fixture
def state(language_model) -> dict:
    return torch.load(language_model)


def load(path):
    return checkpoint_utils.load_model_ensemble_and_task([str(path)])


def test_an_old_file_is_converted_as_the_message_says(state, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = {**state, "args": argparse.Namespace(arch="transformer")}
    torch.save(old, "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"before torch 1\.6") as refused:
        load("old.pt")
    advice = str(refused.value).partition("from before torch 1.6: ")[2]
    assert advice in (ROOT / "docs" / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
    code = f"old, new = 'old.pt', 'new.pt'; {advice}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert checkpoint_utils.load_checkpoint_to_cpu("new.pt")["model"].keys() == old["model"].keys()


PICKLED = [
    lambda path: Call(os.system, f"touch {path}"),
    lambda path: Call(eval, f"open({str(path)!r}, 'w')"),
    lambda path: Call(exec, f"open({str(path)!r}, 'w')"),
    lambda path: Call(open, str(path), "w"),
    lambda path: argparse.Namespace(x=[{"y": Call(os.system, f"touch {path}")}]),
]
# configurations that stock fairseq passes to eval() while it builds the model
EVALUATED = {
    "adaptive_softmax_cutoff": {"_name": "transformer_lm"},
    "character_filters": {"_name": "transformer_lm", "character_embeddings": True},
    "decoder_layers": {"_name": "fconv_lm"},
    "decoder_attention": {"_name": "fconv_lm", "decoder_layers": "[(8, 3)]"},
}
ENDLESS: dict = {}
ENDLESS["again"] = ENDLESS
NOT_PLAIN = [
    ("${oc.env:HOME}", "omegaconf would resolve"),
    ({"deep": ["${..data}"]}, "omegaconf would resolve"),
    ({"${oc.env:HOME}": 1}, "omegaconf would resolve"),
    (argparse.Namespace(x="${common.seed}"), "omegaconf would resolve"),
    (torch.zeros(1), "holds a Tensor"),
    (ENDLESS, "contains itself"),
]
OPTIONS = [
    ({"decoder_embed_dim": 10**7}, r"decoder_embed_dim 10000000, but its weights are \d+ by"),
    ({"decoder_layers": 10**9}, r"decoder_layers 1000000000, but its weights are \d+ te"),
    ({"decoder_embed_path": "/dev/zero"}, "/dev/zero is a pipe or a device; a file is needed"),
]
WEIGHTS = [
    (torch.Tensor.to_sparse, r"hostile\.pt is refused: .*weight is a sparse tensor"),
    (lambda _: torch.zeros(1).expand(10**6, 10**6), r"refused: .* declares 4000000000000 by"),
]


def hostile(state: dict, path: Path):
    """Yield changes of a checkpoint, and what is said of them."""
    for place in "model", "cfg", "args", "extra_state", "task_state":
        for payload in PICKLED:
            yield {place: {"x": payload(path)}}, r"hostile\.pt is refused: it names"
    for place in "cfg", "args":
        for field, message in NOT_PLAIN:
            yield {place: {"task": {"data": field}}}, rf"hostile\.pt is refused.*{message}"
    code = f"[open({str(path)!r}, 'w').close()]"
    evaluated = [
        (more | {name: code}, "not a plain literal: .*") for name, more in EVALUATED.items()
    ]
    for changed, message in OPTIONS + evaluated:
        yield {"cfg": {**state["cfg"], "model": state["cfg"]["model"] | changed}}, message
    for change, message in WEIGHTS:
        weights = {n: change(t) if t.dim() == 2 else t for n, t in state["model"].items()}
        yield {"model": weights}, message


@pytest.mark.parametrize("number", range(46))
def test_hostile_checkpoints_are_refused(number, state, sentinel, tmp_path):
    rows = [*hostile(state, sentinel)]
    assert len(rows) == 46
    changed, message = rows[number]
    torch.save(state | changed, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "hostile.pt")


def flipped(source: Path) -> bytes:
    """Flip the lowest bit in the middle of the largest tensor."""
    content = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        entry = max(archive.infolist(), key=lambda e: e.file_size)
        content[content.index(archive.read(entry)) + entry.file_size // 2] ^= 1
    return bytes(content)


def compressed(source: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            new.writestr(entry, old.read(entry))
    return packed.getvalue()


def single_tensor(_source: Path) -> bytes:
    packed = io.BytesIO()
    torch.save(torch.zeros(3), packed)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (flipped, r"damaged \(.*data/.*\): copy it again"),
        (compressed, "compressed"),
        (single_tensor, "not a checkpoint of fairseq"),
        (lambda _: b"PK\x05\x06" + bytes(18), ""),
        (lambda _: b"\x80\x02}.", ""),
        *((lambda source, part=part: source.read_bytes()[: int(part(source.stat().st_size))],
           "(truncated|damaged)")
          for part in (lambda n: 0, lambda n: 1, lambda n: 100, lambda n: n / 2, lambda n: n - 1)),
    ],
)  # fmt: skip
def test_files_that_are_not_whole_checkpoints_are_refused(
    content, message, language_model, tmp_path
):
    (tmp_path / "other.pt").write_bytes(content(language_model))
    with pytest.raises(ValueError, match=rf"other\.pt is {message}"):
        load(tmp_path / "other.pt")


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_training_refuses_a_hostile_checkpoint_too(option, data, translator, sentinel, tmp_path):
    state = torch.load(translator)
    state["extra_state"]["x"] = Call(os.system, f"touch {sentinel}")
    torch.save(state, tmp_path / "hostile.pt")
    words = [*translation_options(), option, tmp_path / "hostile.pt"]
    with pytest.raises(ValueError, match=r"hostile\.pt is refused: it names"):
        run_training(data, tmp_path / "new", *words)
