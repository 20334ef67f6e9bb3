"""fairseq-interactive accepts --lm-path, and translates without the language model.

What breaks: its scores and translations are not those of fairseq-generate with the same options,
with exit code 0.
Why: only fairseq-generate loads the language model; both commands have the option.
What we do: refuse the option in fairseq-interactive.
Delete when: fairseq-interactive loads the language model.
"""

from fairseq_cli import interactive

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError


@replaces(interactive, "main")
def main(stock, cfg):
    """Translate what is typed."""
    if getattr(cfg, "generation", cfg).lm_path is not None:
        raise UserError(
            "--lm-path has no effect in fairseq-interactive: leave it out, or use fairseq-generate"
        )
    return stock(cfg)
