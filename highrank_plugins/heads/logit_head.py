"""Name the class of structures that give logits; `Head` has their contract, too."""

from highrank_plugins.heads.base import Head

LogitHead = Head
