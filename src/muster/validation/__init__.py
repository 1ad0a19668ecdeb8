"""Validation: published, measured runs as data, and how near the predictions come to them."""
