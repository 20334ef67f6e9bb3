"""Test studies."""
