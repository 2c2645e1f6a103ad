"""Prepares data sets: how a source is understood, listed, checked and written."""
