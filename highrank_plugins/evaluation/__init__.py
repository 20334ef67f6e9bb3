"""Score a text with a model that adapts to it. It needs torch only."""
