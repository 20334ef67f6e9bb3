"""List every metric of a record once: what tables, plots, summaries and papers call it.

A metric that is not listed is headed by its own name. Whether more of it is better follows from its
name, see `common/names.py`; costs say it here.
"""

from dataclasses import dataclass

from highrank_plugins.common.names import direction


@dataclass(frozen=True)
class Metric:
    """Describe a number of a record, or an option over which a plot is drawn.

    `heading` and `format` are those of its column, `axis` names it in a plot. `group` is "score"
    for a column of every table, "cost" for a number of the training run, "timed" for one that a
    repeated run would change. `kind` is the column of published scores, in the format `printed`;
    one with `detail` is shown only if a run has it. `text` is its phrase in the summary of a run.
    """

    name: str
    heading: str = ""
    format: str = ".4g"
    group: str = ""
    axis: str = ""
    more: int = 0
    kind: str = ""
    printed: str = ""
    detail: bool = False
    text: str = ""

    @property
    def title(self) -> str:
        return self.heading or self.name

    @property
    def label(self) -> str:
        return self.axis or self.heading or self.name.replace("_", " ")

    @property
    def better(self) -> int:
        """Return 1 if more is better, −1 if less is, 0 if that is unknown."""
        return self.more or direction(self.name)

    @property
    def is_wide(self) -> bool:
        """Whether it spans orders of magnitude, as ranks and parameters do."""
        return "rank" in self.name or "parameters" in self.name

    def shown(self, value: float | None) -> str:
        """Return the value as it is printed; a dash if there is none."""
        return "–" if value is None else format(value, self.format)


_BLEU = tuple(
    Metric(f"bleu{order}_{name}", "", ".3f", kind=f"BLEU-{order} {name}", detail=order < 4)
    for order in (4, 1, 2, 3)
    for name in ("precision", "recall")
)
_PPL, _BEFORE = "perplexity", "perplexity_before_finetuning"
_LISTED = (
    Metric("sacrebleu", "sacreBLEU", ".2f", "score", "sacreBLEU", kind="sacrebleu", printed=".1f"),
    Metric("bleu_tokenised", "tokenised BLEU", ".2f", kind="tokenised", printed=".1f"),
    Metric(
        "bleu_compound_split", "tokenised BLEU with split compounds", ".2f", kind="compound_split",
        printed=".1f",
    ),
    Metric("", "BLEU of an unstated kind", kind="unstated", printed=".1f"),
    Metric("chrf", "chrF", ".2f", "score"),
    Metric("train_perplexity", "train ppl", ".2f", "score", kind="train ppl", detail=True),
    Metric(f"valid_{_BEFORE}", "valid ppl before finetuning", ".2f", "score"),
    Metric(f"test_{_BEFORE}", "test ppl before finetuning", ".2f", "score"),
    Metric(f"valid_{_PPL}", "valid ppl", ".2f", "score", "validation perplexity", kind="valid ppl"),
    Metric(f"test_{_PPL}", "test ppl", ".2f", "score", "test perplexity", kind="test ppl"),
    Metric("word_perplexity", "ppl per word", ".2f", "score"),
    Metric("bits_per_byte", "bits per byte", ".3f", "score"),
    Metric(f"test_cache_{_PPL}", "test ppl, cache", ".2f", "score", kind="test ppl (cache)"),
    Metric(f"test_dynamic_{_PPL}", "test ppl, dynamic", ".2f", "score", kind="test ppl (dynamic)"),
    Metric(f"valid_cache_{_PPL}", "", ".2f", kind="valid ppl (cache)", detail=True),
    Metric(f"valid_dynamic_{_PPL}", "", ".2f", kind="valid ppl (dynamic)", detail=True),
    Metric("", kind="test ppl (10 seeds)", printed=".2f", detail=True),
    Metric("train_bits", "", ".2f", kind="train bits", detail=True),
    Metric("test_kld", "KLD", ".3f", "score", kind="KLD", detail=True),
    Metric("test_top_5", "top 5, %", ".2f", "score"),
    Metric("test_retention", "retention", ".3f", "score"),
    Metric(
        "test_rank", "rank", ",.0f", "score", "rank of the log-probabilities (Press)", kind="rank"
    ),
    Metric("valid_rank", "", ",.0f", kind="valid rank", detail=True),
    Metric("test_effective_rank_0.001", "", ",.0f", kind="ε-rank (1e-3)", detail=True),
    Metric(
        "test_effective_rank_0.0001", "ε-rank, 1e-4", ",.0f", "score", kind="ε-rank (1e-4)",
        detail=True,
    ),
    Metric("test_effective_rank_1e-05", "", ",.0f", kind="ε-rank (1e-5)", detail=True),
    Metric("valid_kld", "", ".3f", kind="valid KLD", detail=True),
    Metric("valid_bits", "", ".2f", kind="valid bits"),
    Metric("test_bits", "", ".2f", kind="test bits"),
    *_BLEU,
    Metric("word_similarity", "word similarity", ".3f", "score"),
    # numbers of the training run
    Metric("updates", "updates", ",.0f", text="{:,.0f} updates"),
    Metric("wall_seconds", axis="training time (s)", more=-1, text="{:,.0f} s"),
    Metric("epochs", text="up to epoch {:,.0f}"),
    Metric(
        "parameters", "parameters", ",.0f", "cost", "parameters", more=-1,
        text="{:,.0f} parameters",
    ),
    Metric(
        "words_per_second", "words/s in training", ",.0f", "timed", "speed of training (words/s)",
        more=1, text="{:,.0f} words/s",
    ),
    Metric("seconds_per_epoch", "s/epoch", ",.0f", "timed", text="{:,.0f} s per epoch"),
    Metric("valid_loss", text="validation loss {:.3f}"),
    Metric("best_valid_loss", text="best validation loss {:.3f}"),
    Metric(
        "peak_memory_gib", "memory, GiB", ".2f", "timed", "memory of the training run (GiB)",
        more=-1, text="{:.2f} GiB of memory at the peak",
    ),
    # options of train
    Metric("head_components", axis="components K"),
    Metric("head_frequent_ratio", axis="share r of words with gates of their own"),
    Metric("head_dropout", axis="dropout on the contexts"),
)  # fmt: skip
_BY_NAME = {metric.name: metric for metric in _LISTED}
SCORES = tuple(metric for metric in _LISTED if metric.group == "score")
COSTS = tuple(metric for metric in _LISTED if metric.group in ("cost", "timed"))
# column of published scores → its metric, those that are always shown first
KINDS = {
    metric.kind: metric
    for metric in sorted(_LISTED, key=lambda metric: metric.detail)
    if metric.kind
}


def metric_named(name: str) -> Metric:
    """Return a metric; one that is not listed is headed by its name."""
    return _BY_NAME.get(name) or Metric(name)
