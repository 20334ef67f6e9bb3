"""The mass of a perplexity: planted faults are refused, honest scores are not."""

import copy
import math
import re
from functools import cache

import pytest
import torch
from fairseq_cli import eval_lm

from highrank_plugins.common.certificate import POSITIONS, Mass
from highrank_plugins.common.user_error import UserError
from highrank_plugins.evaluation.adaptation import NeuralCache
from highrank_plugins.hooks import evaluation
from highrank_plugins.inference.streaming_model import StreamingModel
from highrank_plugins.models.head_model import HeadModel
from tests.built import Built, parse
from tests.cli import highrank
from tests.inference.checkpoints import write_checkpoint
from tests.tasks.built import build

BLOCKS = """--task language_modeling --tokens-per-sample 16 --decoder-embed-dim 8
    --decoder-ffn-embed-dim 8 --decoder-attention-heads 1 --decoder-layers 1
    --optimizer adam""".split()
STREAM, STOCK = "awd_lstm_lm_mos", "transformer_lm"
POINTS = {
    "cache": "--theta 0.5 --lambda 0.2 --window 9",
    "dynamic": "--lr 0.01 --eps 0.001 --lambda 0.01 --train-batch-size 10",
}


@pytest.fixture(scope="module")
def models(stream_data, tmp_path_factory):
    """Return a function (arch, function) → what is built, with weights large enough to matter."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def models(arch, function="identity"):
        if arch.startswith("awd"):
            built = build(stream_data, "--head-pointwise", function, arch=arch)
        else:
            kind = "cross_entropy" if arch == "transformer_lm" else "highrank_cross_entropy"
            built = Built.of(parse([stream_data, "--arch", arch, "--criterion", kind, *BLOCKS]))
        built.path = write_checkpoint(folder / f"{arch}_{function}.pt", built)
        built.model.eval()
        return built

    return models


def score(*built, model=None, softmax_batch=0, **more):
    """Score the test text as fairseq-eval-lm does, by one or more models."""
    task, models = built[0].task, [model] if model else [one.model for one in built]
    with evaluation._following(1):
        limits = {"max_tokens": 100, "max_positions": 1000} | more
        batches = task.eval_lm_dataloader(dataset=built[0].dataset("test"), **limits)
        eval_lm.eval_lm(models, task.source_dictionary, batches, softmax_batch=softmax_batch)


def validate(built):
    """Score the test text as fairseq-validate does."""
    with evaluation._following(1):
        built.dataset("test")
        most = None if evaluation.newest().in_tokens else 100
        for sample in built.batches("test", max_tokens=most, max_sentences=None):
            built.task.valid_step(sample, built.model, built.criterion)


@pytest.fixture
def signed(caplog):
    """Return a function that scores a text, and returns the signature that is logged."""
    caplog.set_level("INFO")

    def signed(how, *given, bound=5e-6, **options):
        caplog.clear()
        how(*given, **options)
        (found,) = re.findall(r"signature: (ppl\|\S+)", caplog.text)
        return near(found, bound)

    return signed


def near(signature, bound=5e-6):
    assert abs(float(re.search(r"mass:1([+-]\S+?)\|", signature)[1])) < bound
    return signature


def adapt(kind, models, data, *more):
    """Return what an evaluation that adapts to the text has done."""
    words = [*POINTS[kind].split(), "--device", "cpu", *more]
    return highrank("evaluate", kind, models(STREAM).path, data, *words)


# -- honest scores ------------------------------------------------------------------------------

STRUCTURES = ["softmax", "mos", "moc", "mixtape"]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_layers_and_dtypes_are_accepted(structure, models, signed):
    for function in ("identity", "gss", "plif", "sigmoid_cap", "multimax"):
        signed(score, models(f"awd_lstm_lm_{structure}", function))
    built = models(f"transformer_lm_{structure}")
    for dtype, bound in ((torch.float64, 5e-6), (torch.float16, 1e-3)):
        signed(score, built, model=copy.deepcopy(built.model).to(dtype), bound=bound)


@pytest.mark.parametrize(
    "archs",
    [[STREAM], [STREAM, "awd_lstm_lm_softmax"], [STOCK], [STOCK, "transformer_lm_mixtape"]],
    ids="+".join,
)
def test_paths_and_validations_are_accepted(archs, models, signed):
    for part in (0, 3):
        found = signed(score, *map(models, archs), softmax_batch=part)
        assert ("|models:2|" in found) == (len(archs) == 2)
    last = models(archs[-1])
    found = signed(validate, last)
    assert f"|ctx:{'stream' if archs[0] == STREAM else 'block-16'}|" in found
    assert signed(score, last).split("|mass:")[0] == found.split("|mass:")[0]


def test_every_path_and_batching_has_one_text(models, stream_data, signed):
    found = [
        signed(score, models(STREAM)),
        signed(score, models(STOCK)),
        signed(score, models(STOCK), batch_size=1),
        signed(score, models(STOCK), context_window=4),
        *(near(adapt(kind, models, stream_data).stdout.splitlines()[-1]) for kind in POINTS),
    ]
    assert len({re.search(r"text:test-\w{8}\|n:\d+", one)[0] for one in found}) == 1
    contexts = [re.search(r"ctx:([^|]+)", one)[1] for one in found]
    of_blocks = ["block-16", "block-16", "block-16+4"]
    assert contexts == ["stream", *of_blocks, "stream+cache", "stream+dynamic"]
    # targets that are no plain text are not followed
    assert evaluation._Split(dataset=[{"source": 1}], task=object()).followed([]) is None


# -- planted faults -----------------------------------------------------------------------------


REFUSED = r"test: P\(x\) of all words, as it was scored, sums to"


def half_mixture(log_probs, logits):
    one, other = ((of / 10).softmax(-1).half() for of in (logits, logits.flip(-1)))
    return (one * 0.7 + other * 0.3).float().log()


# of what fairseq reads of a stock model
RETURNED = {
    "logits for log P": lambda log_probs, logits: logits,
    "ε in the log": lambda log_probs, logits: (log_probs.exp() + 1e-5).log(),
    "half-precision mixture": half_mixture,
    "half-precision log P": lambda log_probs, logits: log_probs.half().float(),
    "ensemble of logits": lambda one, logits: (one + logits.flip(-1).log_softmax(-1)) / 2,
    "a word left out": lambda one, logits: one.index_fill(-1, torch.tensor([7]), -1e4),
    "unnormalised smoothing": lambda one, logits: torch.logaddexp(one, torch.tensor(-9.0)),
}


def test_a_fault_of_log_probs_is_refused(models, monkeypatch):
    built = models(STOCK)
    own = built.model.get_normalized_probs
    for name, fault in RETURNED.items():

        def returned(out, log_probs, sample=None, fault=fault):
            return fault(own(out, True, sample), out[0])

        monkeypatch.setattr(built.model, "get_normalized_probs", returned)
        with pytest.raises(UserError, match=REFUSED):
            score(built)
            pytest.fail(name)


# of the loss that gives log P of the target alone
LEAN = {
    "ε": lambda nll: -((-nll).exp() + 1e-5).log(),
    "factor": lambda nll: 0.999 * nll,
    "shift": lambda nll: nll - 1e-3,
}


@pytest.mark.parametrize(
    ("how", "arch"), [(score, STREAM), (validate, STREAM), (validate, "transformer_lm_mos")]
)
def test_a_fault_of_a_loss_is_refused(how, arch, models, monkeypatch):
    built, own = models(arch), HeadModel.head_loss
    for name, fault in LEAN.items():

        def loss(*args, fault=fault, **options):
            out = own(*args, **options)
            return out._replace(nll=fault(out.nll))

        monkeypatch.setattr(HeadModel, "head_loss", loss)
        with pytest.raises(UserError, match=REFUSED):
            how(built)
            pytest.fail(name)


def unnormalised(cache, log_probs, pointer, place):
    mixed = torch.logaddexp(log_probs, pointer + torch.tensor(cache.lamb).log())
    return torch.where(place < cache.window, log_probs, mixed)


def scaled(factor):
    def forward(*args, **options):
        out = FORWARD(*args, **options)
        return out._replace(loss=factor * out.loss)

    return forward


MIX, BLOCK, FORWARD = NeuralCache._mix, NeuralCache._block, StreamingModel._forward
# command, class, its method, and what replaces it
ADAPTED = [
    ("cache", NeuralCache, "_mix", unnormalised),
    ("cache", NeuralCache, "_mix", lambda c, p, pointer, at: MIX(c, p, pointer + math.log(2), at)),
    ("cache", NeuralCache, "_block", lambda cache, *given: BLOCK(cache, *given) + 1e-4),
    *(("dynamic", StreamingModel, "_forward", scaled(factor)) for factor in (0.999, 1.001)),
]


@pytest.mark.parametrize(("kind", "cls", "method", "fault"), ADAPTED)
def test_a_fault_of_an_adaptive_evaluation_is_refused_without_a_record(
    kind, cls, method, fault, models, stream_data, monkeypatch, tmp_path
):
    monkeypatch.setattr(cls, method, fault)
    more = ["--output", tmp_path / "out.json", "--save-seconds", 0]
    done = adapt(kind, models, stream_data, *more)
    assert done.exit_code == 2 and "highrank: test: P(x) of all words" in done.output
    assert not [*tmp_path.iterdir()]


# -- positions and bounds -----------------------------------------------------------------------


def test_the_text_draws_the_positions():
    text = torch.arange(5000) % 97
    one = Mass(text, "test", torch.float32)
    assert len({*one.places}) == POSITIONS and one.places == sorted(one.places)
    assert Mass(text.clone(), "valid", torch.float16).places == one.places
    text[4999] += 1
    assert Mass(text, "test", torch.float32).places != one.places
    assert max(one.places) > 4000  # not the first ones
    assert one.within(one.places[3], 1) == [0]


@pytest.mark.parametrize(("dtype", "gap", "accepted"), [
    (torch.float32, 9e-6, True), (torch.float32, 1.1e-5, False), (torch.float16, 9e-4, True),
    (torch.bfloat16, 1.1e-3, False), (torch.float64, -1.1e-5, False),
    (torch.float32, float("nan"), False),
])  # fmt: skip
def test_the_bounds(dtype, gap, accepted):
    mass = Mass(torch.arange(100), "test", dtype)
    rows = torch.randn(4, 9, dtype=torch.float64).log_softmax(-1)
    rows[2] += torch.tensor(gap, dtype=torch.float64).log1p()
    given = rows[range(4), range(4)], torch.arange(4), rows
    if accepted:
        mass.add(*given)
        assert mass.worst == pytest.approx(gap) and mass.seen == 4
        return
    with pytest.raises(UserError, match=r"not to 1 within (1e-05|0.001)\. This score is not"):
        mass.add(*given)
    assert mass.seen == 0


@pytest.mark.parametrize("words", [10_000, 100_000])
def test_an_honest_softmax_of_many_words_is_accepted(words):
    """Its sums in float32 lose small words beside a large one, as those of a trained mixture do."""
    rows = (13.5 * torch.eye(words, 1).t()).softmax(-1).log()
    mass = Mass(torch.arange(100), "test", torch.float32)
    mass.add(rows[:, 0], torch.tensor([0]), rows)
    assert 0.3 < abs(mass.worst) / (words * 2**-27) < 1.1  # the bound is no larger than it must be
