"""`highrank results …`: records of runs, and tables of records."""

from highrank_plugins.cli.group import make_group
from highrank_plugins.cli.results.published import published
from highrank_plugins.cli.results.record import record
from highrank_plugins.cli.results.summary import dialogue_summary, lm_summary, summary
from highrank_plugins.cli.results.tables import results_table, seeds_table

results = make_group(
    {
        "table": results_table,
        "seeds": seeds_table,
        "published": published,
        "record": record,
    },
    {
        "dialogue-summary": dialogue_summary,
        "lm-summary": lm_summary,
        "summary": summary,
    },
)
