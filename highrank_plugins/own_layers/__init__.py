"""Compute a layer that is not this package's as autograd would, and check that it can be.

`ours` recognises such layers, and calls them with other tensors in place of their parameters.
`contract` decides at a layer's first loss, by a `trial` on a few tokens, what may compute it.
`kept_state` takes back what this leaves in the layer.
"""
