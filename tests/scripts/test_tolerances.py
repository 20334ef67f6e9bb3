"""How far a repetition may deviate from the papers' numbers, and what that follows from."""

import json
import math
from statistics import mean, stdev

import pytest

from scripts.tolerances import SPREADS, tolerance
from tests.recipes.running import RECIPES
from tests.results.entries import TASKS, TEN, entry_of, parthiban, published


def test_tolerances_follow_from_deviations():
    entries = published("ptb")
    mos, softmax = parthiban("ptb", "MoS"), parthiban("ptb", "softmax")
    first = entry_of("ptb", "MoS, K = 15", "Yang et al. 2018")
    by_conf = {entry.conf: entry for entry in entries if "rank" in entry.scores}
    three = entry_of("ptb", "MoS, K = 3", "Yang et al. 2018")
    for entry, kind, expected in (
        (mos, "test ppl", 2 * 0.26),
        (softmax, "test ppl", 2 * 0.09),
        (first, "test ppl", 2 * 0.26 / 54.91 * first.scores["test ppl"]),
        (mos, "rank", 2 * 2),
        (first, "rank", 2 * 2),  # as the other MoS with 15 components
        (first, "valid rank", 2 * 2),
        (three, "rank", 2 * 0.0267 * 6467),
        (softmax, "rank", 0),
        (entry_of("ptb", "softmax", "Yang et al. 2018"), "rank", 2),  # prints d for d + 2
        *((by_conf[conf], "rank", 2 * relative * by_conf[conf].scores["rank"])
          for conf, relative in (("parthiban2021/plif_et", 83 / 496), ("yang2018/mos_k5", 0.0267),
                                 ("yang2018/mos_k10", 2 / 9981), ("parthiban2021/moc_et", 0))),
    ):  # fmt: skip
        assert tolerance(entries, entry, kind) == pytest.approx(expected), (entry, kind)
    gain = entry_of("ptb", "MoS, gain as first reported", "Yang et al. 2018")
    assert tolerance(entries, gain, "gain over softmax") == pytest.approx(2 * 2**0.5 * 0.26)
    (big, *_) = published("wmt14_en_de")
    assert tolerance([big], big, "sacrebleu") == pytest.approx(2 * 0.0071 * 28.6)
    (bits, *_) = published("text8")
    apart = math.log2(1 + 2 * 0.0069)  # of perplexities
    assert tolerance([bits], bits, "test bits") == pytest.approx(apart, rel=0.01)
    assert tolerance([bits], bits, "hours") is None


def test_spreads_are_the_largest_of_their_texts():
    entries = [entry for task in TASKS for entry in published(task)]
    of_texts = [
        entry.deviations[kind] / entry.scores[kind]
        for entry in entries for kind in ("test ppl", TEN) if kind in entry.deviations
    ]  # fmt: skip
    assert SPREADS["ppl"] == pytest.approx(max(of_texts), abs=5e-5)
    for name, study, metrics in (
        ("KLD", "ptb_small", ["test_kld"]),
        ("ε-rank", "ptb_small", [f"test_effective_rank_{e}" for e in ("0.001", "0.0001", "1e-05")]),
        ("rank", "ptb_small", ["test_rank"]),
        ("BLEU", "wmt_multi30k", ["sacrebleu"]),
    ):
        runs: dict[tuple[str, str], list[float]] = {}
        for path in sorted((RECIPES.parent / "docs" / "records" / study).glob("*.json")):
            if name == "rank" and path.stem.startswith("plif"):
                continue  # its random slopes decide, and papers print its deviation
            scores = json.loads(path.read_text(encoding="utf-8"))["metrics"]
            for metric in metrics:
                runs.setdefault((path.stem.rpartition("-")[0], metric), []).append(scores[metric])
        found = [stdev(scores) / mean(scores) for scores in runs.values() if len(scores) > 2]
        assert SPREADS[name] == pytest.approx(max(found), abs=5e-5), name
