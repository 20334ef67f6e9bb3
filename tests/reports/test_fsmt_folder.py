"""A translator goes to transformers as FSMT: numbers, translations, words; others are refused."""

import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.pieces import PieceSettings, encoder, learn_pieces
from highrank_plugins.inference.loading import load_model
from highrank_plugins.reports.fsmt_folder import export_fsmt, refuse_others
from highrank_plugins.reports.model_folder import certify, read_parts, served_by_transformers
from tests.fairseq_cli import run
from tests.models.small import build
from tests.tiny_corpus import TEXT
from tests.trainings import last, train


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Return SentencePiece's model of the text, beside binarised data of two dictionaries."""
    folder = tmp_path_factory.mktemp("pieces")
    texts, settings = [TEXT / "train.en", TEXT / "train.de"], PieceSettings(vocab_size=300)
    model = learn_pieces(texts, folder / "pieces", settings)
    for part in ("train", "valid", "test"):
        for language in ("en", "de"):
            lines = (TEXT / f"{part}.{language}").read_text().splitlines()
            text = "".join(f"{line}\n" for line in encoder(model)(lines))
            (folder / f"{part}.{language}").write_text(text)
    prefixes = [x for p in ("train", "valid", "test") for x in (f"--{p}pref", folder / p)]
    languages = ["--source-lang", "en", "--target-lang", "de"]
    run("preprocess", *prefixes, *languages, "--destdir", folder / "bin")
    return model


@pytest.fixture(scope="module")
def checkpoint(pieces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    options = ("--share-decoder-input-output-embed", "--dropout", 0, "--lr", 0.003)
    train(pieces.parent / "bin", folder, "transformer_softmax", 60, *options)
    return last(folder)


@pytest.fixture(scope="module")
def folder(checkpoint, pieces):
    folder = checkpoint.parent / "published"
    export_fsmt(read_parts(checkpoint, folder, None, pieces), folder, "MIT", pieces)
    return folder


def fsmt(folder):
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install 'highrank_plugins[hf]'"
    )
    return transformers.FSMTForConditionalGeneration.from_pretrained(folder).eval()


def test_log_probs_words_and_translations_are_those_of_fairseq(checkpoint, folder, pieces):
    theirs = fsmt(folder)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded = load_model(checkpoint, str(pieces.parent / "bin"))
    loaded.task.load_dataset("test")
    data = loaded.task.dataset("test")
    inputs = data.collater([data[index] for index in range(20)])["net_input"]
    previous, source = inputs["prev_output_tokens"], inputs["src_tokens"]
    with torch.no_grad():
        want = loaded.model.get_normalized_probs(loaded.model(**inputs), log_probs=True)
        given = {"attention_mask": source.ne(1).long(), "decoder_input_ids": previous}
        out = theirs(source, **given, use_cache=False)
    kept = previous.ne(1)
    assert (~kept).any() and source.eq(1).any()  # of padded batches
    assert (out.logits.log_softmax(-1) - want)[kept].abs().max() < 2e-5
    words = loaded.task.source_dictionary
    text = (TEXT / "test.en").read_text().splitlines()
    odd = ["", " two  blanks ", "Übergröße 漢字 ☂☂ x", "a▁b", "</s> <pad>", "“d” - it's"]
    for line in (*text, *odd):
        (split,) = encoder(pieces)([line])
        want = words.encode_line(split, add_if_not_exist=False, append_eos=True).tolist()
        assert tokenizer(line).input_ids == want, line
    search = SimpleNamespace(beam=5, max_len_a=0, max_len_b=200)
    generator = loaded.task.build_generator([loaded.model], search)
    for line in text:
        inputs = tokenizer([line], return_tensors="pt")
        (found,) = theirs.generate(**inputs)
        length = torch.tensor([inputs.input_ids.shape[1]])
        sample = {"net_input": {"src_tokens": inputs.input_ids, "src_lengths": length}}
        best = loaded.task.inference_step(generator, [loaded.model], sample)[0][0]["tokens"]
        assert found[1:].tolist() == best.tolist()
        (shown,) = tokenizer.batch_decode(found[None], skip_special_tokens=True)
        joined = loaded.dictionary.string(best, bpe_symbol="sentencepiece")
        assert shown.split() == joined.replace("<unk>", "").split()


def test_the_folder_is_whole_and_the_code_of_its_card_runs(folder, tmp_path):
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "certificate.json", "config.json", "generation_config.json",
        "model.safetensors", "source.spm", "target.spm", "target_vocab.json",
        "tokenizer_config.json", "vocab.json",
    }  # fmt: skip
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings == {
        "num_beams": 5, "length_penalty": 1.0, "max_length": 202, "early_stopping": True,
        "suppress_tokens": [1], "min_new_tokens": 1, "bos_token_id": 0, "pad_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
    }  # fmt: skip
    theirs = fsmt(folder)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) == 5
    python, pipes = [sys.executable, "-c", code], {"capture_output": True, "text": True}
    done = subprocess.run(python, cwd=folder.parent, check=True, **pipes)
    assert done.stdout.startswith("[") and "newly initialized" not in done.stderr
    shutil.copytree(folder, tmp_path / "copy")
    theirs.half().save_pretrained(tmp_path / "copy")  # is compared more coarsely
    assert certify(tmp_path / "copy").startswith(f"{tmp_path}/copy: computes what was certified")


def with_config(**change):
    return lambda config: json.dumps(json.loads(config) | change)


def swapped(vocabulary):
    numbers = json.loads(vocabulary)
    return json.dumps(numbers | {list(numbers)[9]: 5, list(numbers)[5]: 9})


# a file of the folder, its fault, and the message
@pytest.mark.parametrize(("name", "fault", "message"), [
    ("config.json", with_config(activation_function="gelu"), "another function"),
    ("config.json", with_config(scale_embedding=False), "another function"),
    ("target_vocab.json", swapped, r"vocab\.json: its sha256 is"),
])  # fmt: skip
def test_transformers_computes_what_was_certified_and_faults_are_refused(
    folder, tmp_path, name, fault, message
):
    fsmt(folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert certify(tmp_path / "copy").startswith(f"{tmp_path}/copy: computes what was certified")
    path = tmp_path / "copy" / name
    path.write_text(fault(path.read_text("latin1")), "latin1")
    with pytest.raises(UserError, match=message):
        certify(tmp_path / "copy")


def test_missing_transformers_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "highrank_plugins.huggingface", raising=False)
    with pytest.raises(UserError, match=r"pip install 'transformers>=5\.0,<6'"):
        served_by_transformers(tmp_path)


# architecture and options of a model that FSMT cannot be, and how it is named
@pytest.mark.parametrize(("arch", "words", "message"), [
    ("softmax", ["--encoder-normalize-before"], "parameter encoder.layer_norm.weight"),
    ("softmax", ["--no-token-positional-embeddings"], "--no-token-positional-embeddings"),
    ("mos", [], "output layer mos with identity"),
    ("softmax", ["--head-pointwise", "softcap"], "output layer softmax with softcap"),
    ("softmax", ["--rel-pos-clip", 4], "parameter encoder.layers.0.self_attn.relative"),
    ("softmax", ["--activation-fn", "gelu_fast"], "--activation-fn gelu_fast"),
    ("lstm", [], "model like lstm_softmax"),
])  # fmt: skip
def test_what_fsmt_cannot_be_is_refused_by_name(joined_data, tmp_path, arch, words, message):
    arch = "lstm_softmax" if arch == "lstm" else f"transformer_{arch}"
    built = build(joined_data, arch, *words)
    config = {"model": {"_name": arch}, "task": {"_name": "translation"}}
    config = {"fairseq": config | {"generation": {"max_len_a": 0}}}
    parts = SimpleNamespace(model=built.model, config=config, checkpoint=tmp_path / "a.pt")
    with pytest.raises(UserError, match=rf"a\.pt: FSMT, .* of transformers, has no {message}"):
        refuse_others(parts)


def test_other_searches_and_codes_are_refused(checkpoint, tmp_path):
    parts = read_parts(checkpoint, tmp_path / "out", None, None)
    with pytest.raises(UserError, match=r"no tokenizer of transformers splits text by these codes"):
        export_fsmt(parts, tmp_path / "out", "MIT", tmp_path / "codes")
    parts.config["fairseq"]["generation"]["max_len_a"] = 1.2
    with pytest.raises(UserError, match=r"has no --max-len-a 1\.2"):
        export_fsmt(parts, tmp_path / "out", "MIT", None)
    assert not (tmp_path / "out").exists()
