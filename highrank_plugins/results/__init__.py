"""From output files to scores, records, tables and comparisons."""
