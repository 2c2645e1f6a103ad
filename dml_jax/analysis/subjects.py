"""All analyses by name, in the order of the report."""

from dml_jax.analysis import (
    attention,
    classes,
    curves,
    distances,
    embedding_maps,
    heat_maps,
    influence,
    retrieval,
    spectra,
    verification,
)
from dml_jax.analysis.findings import Subject

SUBJECTS = {
    "retrieval": Subject("Retrieved images", retrieval.findings, standard=True),
    "classes": Subject("Classes", classes.findings, standard=True),
    "components": Subject(
        "Map of the embeddings (principal components)", embedding_maps.by_components, standard=True, compared=True,
        is_map=True,
    ),
    "distances": Subject("Distances of pairs", distances.findings, standard=True, compared=True),
    "verification": Subject(
        "Verification of pairs", verification.findings, verification.reason_not_to, standard=True
    ),
    "overfitting": Subject(
        "Training classes beside test classes", curves.findings, by_split=False, of_run=True, compared=True
    ),
    "spectra": Subject("Geometry of the embedding space", spectra.findings, compared=True),
    "tsne": Subject("Map of the embeddings (t-SNE)", embedding_maps.by_tsne, compared=True, is_map=True),
    "attention": Subject(
        "Attention of the message passing network", attention.findings, attention.reason_not_to, by_split=False,
        of_run=True,
    ),
    "influence": Subject(
        "Influence of the batch on a prediction", influence.findings, attention.reason_not_to, by_split=False,
        of_run=True,
    ),
    "heat_maps": Subject("Prototypes over the image", heat_maps.findings, heat_maps.reason_not_to, of_run=True),
}  # fmt: skip
