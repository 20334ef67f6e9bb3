"""Write a translator as a folder that transformers loads, as its model type FSMT.

FSMT is fairseq's Transformer: parameters have the same names, after `model.`.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from highrank_plugins.common.files import write_json, write_text
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.names import flag, layer_name
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import Head
from highrank_plugins.reports import model_folder

_FUNCTIONS = ("relu", "gelu", "tanh", "linear")
_MODELS = ("TransformerModel", "TransformerModelBase", "TransformerHeadModel")
_MATRICES = [f"{x}.weight" for x in ("encoder.embed_tokens", "decoder.output_projection")]
_TIED = "decoder.embed_tokens.weight"  # the one that transformers keeps
# options that FSMT has no counterpart for, and which have no parameters
_OTHER_OPTIONS = ("no_token_positional_embeddings", "no_cross_attention", "cross_self_attention")
_LINEAR = r"(weight|bias)"
_PARAMETER = re.compile(
    r"(encoder|decoder)\.(version|embed_tokens\.weight|embed_positions\._float_tensor|"
    r"output_projection\.weight|layers\.\d+\."
    rf"(((self|encoder)_attn\.[qkv]|(self|encoder)_attn\.out)_proj|fc[12]|\w+_layer_norm)\.{_LINEAR})"
)
_SIZES = {"ffn_dim": "ffn_embed_dim"} | {x: x for x in ("layers", "attention_heads", "layerdrop")}
_ENDS = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_CARD = """\
---
library_name: transformers
license: {licence}
pipeline_tag: translation
---
# {name}

A Transformer that translates from {source} to {target}, trained with fairseq and exported by
`highrank model export --to huggingface`. It needs `pip install transformers torch sentencepiece`.

```python
{code}
```

`highrank model certify {name}` checks that it computes the same as the trained checkpoint.
"""
_TEXT = """\
from transformers import AutoTokenizer, FSMTForConditionalGeneration
tokenizer = AutoTokenizer.from_pretrained("{name}")
model = FSMTForConditionalGeneration.from_pretrained("{name}")
found = model.generate(**tokenizer(["A sentence."], return_tensors="pt", padding=True))
print(tokenizer.batch_decode(found, skip_special_tokens=True))"""
_IDS = """\
import torch
from transformers import FSMTForConditionalGeneration
model = FSMTForConditionalGeneration.from_pretrained("{name}")
numbers = torch.tensor([[17, 4, 2]])  # of fairseq's dictionary; 2 ends a sentence
print(model.generate(numbers))"""


def export_fsmt(
    parts: model_folder.ModelParts, folder: Path, licence: str, pieces: Path | None
) -> None:
    """Write a translator into a new folder, with a tokenizer if `pieces` are SentencePiece's."""
    refuse_others(parts)
    if pieces is not None and pieces.suffix != ".model":
        raise UserError(
            f"--pieces {pieces}: no tokenizer of transformers splits text by these codes as "
            "fairseq does; leave --pieces out and split the text with `highrank data pieces`"
        )
    task = parts.config["fairseq"]["task"]
    languages = [str(task[f"{side}_lang"]) for side in ("source", "target")]
    with new_folder(folder) as part:
        if pieces is not None:
            _write_tokenizer(part, languages, parts, pieces)
        parts.write_certificate(part, model_folder.sums(part))
        model_folder.save_tensors(_tensors(parts), part / model_folder.WEIGHTS, {"format": "pt"})
        write_json(part / model_folder.CONFIG, _config(parts, languages))
        write_json(part / "generation_config.json", _generation(parts))
        code = (_IDS if pieces is None else _TEXT).format(name=folder.name)
        shown = {"name": folder.name, "source": languages[0], "target": languages[1]}
        write_text(
            part / model_folder.CARD, _CARD.format(licence=json.dumps(licence), code=code, **shown)
        )


def refuse_others(parts: model_folder.ModelParts) -> None:
    """Refuse a model that FSMT cannot be, and name what it lacks."""
    for lack in _lacks(parts):
        raise UserError(
            f"{parts.checkpoint}: FSMT, the translator of transformers, has no {lack}; export "
            "without --to huggingface"
        )


def _lacks(parts: model_folder.ModelParts) -> Iterator[str]:
    model, config = parts.model, parts.config["fairseq"]
    if type(model).__name__ not in _MODELS:
        yield f"model like {config['model'].get('_name')} ({type(model).__name__})"
        return
    layer = model.decoder.output_projection
    names = (layer_name(layer), layer_name(layer.pointwise)) if isinstance(layer, Head) else ()
    if names not in ((), ("softmax", "identity")):
        yield f"output layer {' with '.join(names)}; it has a softmax alone"
    others = (name for name in model.state_dict() if not _PARAMETER.fullmatch(name))
    yield from (f"parameter {name}" for name in others)
    yield from (flag(name) for name in _OTHER_OPTIONS if getattr(model.cfg, name, None))
    widths = [getattr(model, side).embed_tokens.embedding_dim for side in ("encoder", "decoder")]
    if widths[0] != widths[1]:
        yield f"encoder and decoder of different widths ({widths[0]} and {widths[1]})"
    if model.cfg.activation_fn not in _FUNCTIONS:
        yield f"--activation-fn {model.cfg.activation_fn}"
    if config["task"]["_name"] != "translation":
        yield f"--task {config['task']['_name']}"
    if config["generation"]["max_len_a"]:
        yield f"--max-len-a {config['generation']['max_len_a']}"


def _tensors(parts: model_folder.ModelParts) -> dict[str, Tensor]:
    """Return the parameters by the names of transformers, and the two tables of positions."""
    model, state = parts.model, parts.model.state_dict()
    copies = _MATRICES if _is_tied(state) else []
    tensors = {
        f"model.{name}": value.float().contiguous().clone()
        for name, value in state.items()
        if not name.endswith(model_folder.MARKS) and name not in copies
    }
    for side in ("encoder", "decoder"):
        table = getattr(model, side).embed_positions
        size, pad = _positions(model) + table.padding_idx + 1, table.padding_idx
        made = table.get_embedding(size, table.embedding_dim, pad)
        tensors[f"model.{side}.embed_positions.weight"] = made
    return tensors


def _is_tied(state: dict[str, Tensor]) -> bool:
    return len({state[name].data_ptr() for name in (_TIED, *_MATRICES)}) == 1


def _positions(model: Any) -> int:
    return max(model.cfg.max_source_positions, model.cfg.max_target_positions)


def _config(parts: model_folder.ModelParts, languages: list[str]) -> dict[str, Any]:
    model, cfg = parts.model, parts.model.cfg
    sides = {
        f"{side}_{theirs}": getattr(getattr(cfg, side), ours)
        for side in ("encoder", "decoder")
        for theirs, ours in _SIZES.items()
    }
    rates = ("dropout", "attention_dropout", "activation_dropout")
    return {
        "architectures": ["FSMTForConditionalGeneration"],
        "model_type": "fsmt",
        "is_encoder_decoder": True,
        "dtype": "float32",
        "langs": languages,
        "src_vocab_size": len(model.encoder.dictionary),
        "tgt_vocab_size": len(model.decoder.dictionary),
        "d_model": cfg.encoder.embed_dim,
        "max_position_embeddings": _positions(model),
        "activation_function": cfg.activation_fn,
        "scale_embedding": not cfg.no_scale_embedding,
        "tie_word_embeddings": _is_tied(model.state_dict()),
        **{name: getattr(cfg, name) or 0.0 for name in rates},
        **sides,
        **_ENDS,
    }


def _generation(parts: model_folder.ModelParts) -> dict[str, Any]:
    """Return the settings with which transformers finds the translations of fairseq-generate."""
    found = parts.config["fairseq"]["generation"]
    longest = min(found["max_len_b"], parts.model.cfg.max_target_positions - 1)
    return {
        "num_beams": found["beam"],
        "length_penalty": float(found["lenpen"]),
        "max_length": longest + 2,
        "early_stopping": True,  # fairseq stops once the beam is full of ended sentences
        "suppress_tokens": [1],
        "min_new_tokens": 1,
        **_ENDS,
    }


def _write_tokenizer(
    folder: Path, languages: list[str], parts: model_folder.ModelParts, pieces: Path
) -> None:
    """Write the tokenizer of Marian: SentencePiece's pieces, then the numbers of dictionaries."""
    model = parts.model
    for part, side, name in (
        (model.encoder, "source", "vocab"),
        (model.decoder, "target", "target_vocab"),
    ):
        write_json(folder / f"{name}.json", part.dictionary.indices)
        shutil.copyfile(pieces, folder / f"{side}.spm")
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": True,
        "source_lang": languages[0],
        "target_lang": languages[1],
        "model_max_length": parts.model.cfg.max_source_positions,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "split_special_tokens": True,  # `</s>` in a text is text
    }
    write_json(folder / "tokenizer_config.json", settings)
