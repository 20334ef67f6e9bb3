"""Conversations as contexts and responses."""
