"""Figures and ablations of single papers; each module is run by itself."""
