"""Certify what a model computes, so that the served model is the trained one; and its perplexities.

A certificate holds 64 positions of random words. Position p has log P of its next word and of each
class x with x mod 64 = p, so that every row of the vocabulary matrix is read, and Σ P of all
classes. They are computed in float64. Greedy words do not show a wrong scale or cap.

A perplexity is certified by Σ P(x) at 64 positions of the text that was scored, see `Mass`.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import highrank_plugins
from highrank_plugins.common.files import check_sum, read_json
from highrank_plugins.common.text_lines import is_piece
from highrank_plugins.common.user_error import UserError

CERTIFICATE = "certificate.json"
POSITIONS = 64
_LENGTH = 8  # words of each example
_FIRST, _END = 4, 2  # numbers of fairseq's first word and of </s>
_HALVES = (torch.float16, torch.bfloat16)
_RARE = 20.0  # −log P from which float32 is less exact


class Served(NamedTuple):
    """Hold what a model computes, and how exactly."""

    words: list[int]  # numbers of source words (0: a language model) and of classes
    dtype: torch.dtype
    log_probs: Callable[[Tensor, Tensor], Tensor]  # of source [N, S] and input [N, T]: [N, T, M]


def certificate_path(model: Path) -> Path:
    """Return the place of the certificate of a folder or a checkpoint."""
    return model / CERTIFICATE if model.is_dir() else model.with_suffix(f".{CERTIFICATE}")


def of_fairseq(model: Any) -> Served:
    """Return what a fairseq model computes in evaluation mode."""
    encoder, is_training = getattr(model, "encoder", None), model.training
    first = next(model.parameters())

    @torch.no_grad()
    def log_probs(source: Tensor, previous: Tensor) -> Tensor:
        inputs = {"src_tokens": previous}
        if encoder is not None:
            lengths = torch.full((len(source),), source.shape[1])
            inputs = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
        model.eval()
        out = model(**{name: value.to(first.device) for name, value in inputs.items()})
        model.train(is_training)
        if getattr(model.decoder, "adaptive_softmax", None) is not None:
            return model.get_normalized_probs(out, log_probs=True)
        # ours return log P, and a second normalisation would hide that their sum is not 1
        return out[0] if hasattr(model, "as_returned") else out[0].log_softmax(-1)

    words = [0 if encoder is None else len(encoder.dictionary), len(model.decoder.dictionary)]
    return Served(words, first.dtype, log_probs)


def of_transformers(model: Any) -> Served:
    """Return what a translator (FSMT) or language model of transformers computes."""
    config, is_fsmt = model.config, model.config.is_encoder_decoder
    words = [config.src_vocab_size, config.tgt_vocab_size] if is_fsmt else [0, config.vocab_size]
    # with a cache, FSMT builds no causal mask, and each position sees the next
    names = ("input_ids", "decoder_input_ids") if is_fsmt else ("", "input_ids")

    @torch.no_grad()
    def log_probs(*given: Tensor) -> Tensor:
        inputs = {name: value.to(model.device) for name, value in zip(names, given, strict=True)}
        logits = model(**{name: of for name, of in inputs.items() if name}, use_cache=False).logits
        return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)

    return Served(words, model.dtype, log_probs)


def certificate_of(served: Served) -> dict[str, Any]:
    """Return the certificate of a model, which should be in float64."""
    generator = torch.Generator().manual_seed(1)

    def draw(words: int) -> Tensor:
        shape = (POSITIONS // _LENGTH, _LENGTH)
        return torch.randint(min(_FIRST, words - 1), words, shape, generator=generator)

    target = draw(served.words[1])
    end = torch.full_like(target[:, :1], _END)
    source = torch.cat([draw(served.words[0]), end], 1) if served.words[0] else target[:, :0]
    words = {"source": source, "previous": torch.cat([end, target[:, :-1]], 1), "target": target}
    numbers = {"numbers": _numbers(served, *words.values())[0]}
    saved = {name: value.tolist() for name, value in (words | numbers).items()}
    return {"words": served.words, **saved}


def compare(path: Path, served: Served) -> float:
    """Compare a model with a certificate; return the largest difference, relative below e^-20."""
    tolerance = 1e-2 if served.dtype in _HALVES else 1e-4
    saved, expected, *words = _read(path)
    if saved["words"] != served.words:
        raise UserError(
            f"{path}: the model has {served.words[1]} classes and {served.words[0]} source words, "
            f"the certified one {saved['words'][1]} and {saved['words'][0]}"
        )
    for name, digest in saved.get("sha256", {}).items():
        check_sum(path.parent / name, str(digest))
    found, classes = _numbers(served, *words)
    gaps = (found - expected).abs().nan_to_num(torch.inf) / (expected.abs() / _RARE).clamp(min=1)
    if gaps.max() <= tolerance:
        return gaps.max().item()
    place, column = divmod(int(gaps.argmax()), gaps.shape[1])
    is_sum = column == classes.shape[1]
    what = "Σ P" if is_sum else f"log P of class {classes[place, column]}"
    raise UserError(
        f"{path}: the model computes another function than the certified one: {what} at position "
        f"{place} is {found[place, column]:.5f}, certified is {expected[place, column]:.5f}; "
        f"{int((gaps > tolerance).any(1).sum())} of {POSITIONS} positions differ by more than "
        f"{tolerance:g}. Serve the certified model; if you replaced it on purpose, export or "
        "certify it again"
    )


def compare_where_certified(checkpoint: Path, model: Any) -> None:
    """Compare a fairseq model with the certificate of its checkpoint or folder, if it has one."""
    if (path := certificate_path(checkpoint)).exists():
        compare(path, of_fairseq(model))


def compare_folder(folder: str | Path, model: Any) -> None:
    """Compare a model of transformers with its folder's head and, in float32, certificate."""
    path, config = (Path(str(folder)) / name for name in (CERTIFICATE, "config.json"))
    stated = read_json(config) if config.exists() else {}
    names = ("head", "head_options", "feature_scale")
    if changed := [n for n in names if n in stated and stated[n] != getattr(model.config, n)]:
        raise UserError(
            f"{config}: {', '.join(changed)}: the saved model has another value; leave it out"
        )
    kinds = {(p.dtype, p.is_meta) for p in model.parameters()}
    if path.exists() and kinds == {(torch.float32, False)}:
        compare(path, of_transformers(model))


def _numbers(served: Served, source: Tensor, previous: Tensor, target: Tensor) -> list[Tensor]:
    """Return log P of the chosen classes and Σ P of each position, and the classes."""
    found = served.log_probs(source, previous).double().flatten(0, 1).cpu()
    classes = torch.arange(POSITIONS)[:, None] + torch.arange(0, found.shape[1], POSITIONS)
    classes = torch.cat([target.reshape(-1, 1), classes % found.shape[1]], 1)
    return [torch.cat([found.gather(1, classes), found.exp().sum(1, True)], 1), classes]


def _read(path: Path) -> tuple[Any, ...]:
    """Return the contents of a certificate, and its numbers and words as tensors."""
    try:
        saved = read_json(path)
        numbers = torch.tensor(saved["numbers"], dtype=torch.float64)
        words = [torch.tensor(saved[name]).long() for name in ("source", "previous", "target")]
        limits = [saved["words"][side] for side in (0, 1, 1)]
        shape = (POSITIONS, -(-limits[1] // POSITIONS) + 2)
        is_whole = all(((of >= 0) & (of < n)).all() for of, n in zip(words, limits, strict=True))
        is_whole &= isinstance(saved.get("sha256", {}), dict)
        if numbers.shape == shape and words[1].shape == words[2].shape and is_whole:
            return saved, numbers, *words
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        pass
    raise UserError(f"{path} is not a certificate; export or certify the model again")


# -- perplexities ----------------------------------------------------------------------------------


def digest_of_tokens(tokens: Tensor) -> str:
    """Return a digest that tells one text from another."""
    return hashlib.sha256(tokens.contiguous().numpy().data).hexdigest()[:16]


def mass_bound(words: int, is_half: bool) -> float:
    """Return how far Σ P may be from 1: 1e-5 (half precision: 1e-3), and 2^-27 for each word."""
    # torch's softmax in float32 adds words in eight sums (AVX2; sixteen with AVX-512), and the one
    # that has a large term loses up to 2^-24 of each other word, in all 7.5e-5 of 10,000 words
    return (1e-3 if is_half else 1e-5) + words * 2.0**-27


class Mass:
    """Hold Σ_x P(x) at 64 positions of a scored text [N], and refuse one that is not 1.

    The text's digest draws the positions, so that no batching and no evaluation changes them. A sum
    is P_scored(y) Σ_x P(x) / P(y), with y the word that was scored. P is what the scored path
    computes of all words. If it computes y alone, P is the layer's, of the same features.

    `worst` is Σ P − 1 where it is largest in size, `seen` the number of positions so far.
    """

    def __init__(self, text: Tensor, name: str, dtype: torch.dtype, worst: float = 0.0) -> None:
        self.text, self.name, self.digest = text, name, digest_of_tokens(text)
        draw = np.random.RandomState(int(self.digest[:8], 16))
        self.places = sorted(draw.permutation(len(text))[:POSITIONS].tolist())
        self.is_half = dtype in _HALVES
        self.worst, self.seen = worst, 0

    def within(self, start: int, length: int) -> list[int]:
        """Return the positions among `length` tokens, counted from the first, number `start`."""
        return [place - start for place in self.places if start <= place < start + length]

    def add(self, scored: Tensor, target: Tensor, log_probs: Tensor) -> None:
        """Add n ≥ 1 tokens: their score log P(y) [n], y [n], and log P of all words [n, M].

        Refuse a sum that is not 1. The bound grows with −log P(y) above 20.
        """
        rows, scored = log_probs.detach().double(), scored.detach().double()
        ratio = scored - rows.gather(1, target.unsqueeze(1)).squeeze(1)
        gaps = (rows.logsumexp(1) + ratio).expm1()
        worst = gaps[gaps.abs().nan_to_num(torch.inf).argmax()].item()
        bound = mass_bound(rows.size(1), self.is_half)
        if not abs(worst) <= bound * max(1.0, -scored.min().item() / _RARE):
            half = " (or the model overflows: try without --fp16)" if self.is_half else ""
            raise UserError(
                f"{self.name}: P(x) of all words, as it was scored, sums to {1 + worst:.6g} at a "
                f"position, not to 1 within {bound:.2g}. This score is not a "
                f"perplexity; mend the layer, cache or ensemble that returns it{half}"
            )
        self.worst, self.seen = max(self.worst, worst, key=abs), self.seen + len(gaps)

    def signature(self, dictionary: Any, context: str, words: int = 0) -> str:
        """Return the signature of a perplexity; `words`: over which it is a mean, if not tokens."""
        symbols = dictionary.symbols[dictionary.nspecial :][:2000]  # the most frequent
        unit = "word" if words or not any(map(is_piece, symbols)) else "piece"
        ends, unknown = (
            "counted" if (self.text == number).any() else "absent"
            for number in (dictionary.eos(), dictionary.unk())
        )
        return self.signed(f"unit:{unit}|ctx:{context}|eos:{ends}|unk:{unknown}", words)

    def signed(self, what: str, words: int = 0) -> str:
        """Return a signature that begins with what was scored; `words` as of `signature`."""
        mass = f"1{self.worst:+.0e}".replace("e-0", "e-")
        return (
            f"ppl|{what}|text:{self.name}-{self.digest[:8]}|n:{words or len(self.text)}|"
            f"mass:{mass}|v:{highrank_plugins.__version__}"
        )
