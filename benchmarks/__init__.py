"""Measurements, claims and figures of papers, run as modules; nothing in `dml_jax` uses them."""
