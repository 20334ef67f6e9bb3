"""Configurations, data checks, averaging, scoring and result records for recipes.

Those that recipes call at every stage are light to import: torch, fairseq, sacrebleu and
sentencepiece come in where they are used. Modules over tensors import torch.
"""
