"""Turn output files into scores, records, tables and comparisons."""
