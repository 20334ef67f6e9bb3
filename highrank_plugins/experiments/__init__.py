"""Configurations, data checks, averaging, scoring and result records for recipes.

Light to import: torch, fairseq, sacrebleu and sentencepiece are imported where they are used.
"""
