"""``--encoder-layers-to-keep`` and ``--decoder-layers-to-keep``: a checkpoint with fewer layers."""

from omegaconf import DictConfig

from highrank_plugins.models.relative_positions import SIDES


def count_kept_layers(cfg: DictConfig) -> None:
    """Put the number of layers that are kept where the number of all is.

    fairseq empties the lists once it has loaded these layers, and then saves the configuration.

    Args:
        cfg: changed in place.
    """
    for side in SIDES:
        kept = cfg.get(f"{side}_layers_to_keep")
        if kept:
            cfg[f"{side}_layers"] = len(kept.split(","))
