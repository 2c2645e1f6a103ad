"""Analyses of a model: a module per subject, their findings, and the report."""
