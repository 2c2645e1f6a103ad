"""The names of the analyses; each is a module of this package, see `findings`."""

# In the order of the report.
SUBJECTS = (
    "retrieval", "classes", "components", "distances", "verification", "calibration", "health", "overfitting",
    "spectra", "tsne", "umap", "attention", "influence", "heat_maps",
)  # fmt: skip
# Those computed for one split.
BY_SPLIT = (
    "retrieval", "classes", "components", "distances", "verification", "spectra", "tsne", "umap", "heat_maps",
)  # fmt: skip
# Those of any model on any labelled images.
OF_EMBEDDINGS = tuple(name for name in BY_SPLIT if name != "heat_maps")
# Those that compare several models.
COMPARED = ("components", "distances", "overfitting", "spectra", "tsne", "umap")
OF_BATCH = tuple(name for name in COMPARED if name in BY_SPLIT)  # of a training batch, which is small
MAPS = ("components", "tsne", "umap")
STANDARD = ("retrieval", "classes", "components", "distances", "verification")  # in the report of every run
