"""The files of a work directory: metrics, timing, stored models."""
