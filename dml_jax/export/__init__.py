"""Exports of a model: tables of embeddings, programs of other libraries, the hub."""
