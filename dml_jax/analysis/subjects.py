"""The names of the analyses, each that of a module of this package; see `findings`."""

# In the order of the report. A subject is the name of its module.
SUBJECTS = (
    "retrieval", "classes", "components", "distances", "verification", "calibration", "health", "overfitting",
    "spectra", "tsne", "umap", "attention", "influence", "heat_maps",
)  # fmt: skip
# Made for one split.
BY_SPLIT = (
    "retrieval", "classes", "components", "distances", "verification", "spectra", "tsne", "umap", "heat_maps",
)  # fmt: skip
STANDARD = ("retrieval", "classes", "components", "distances", "verification")  # in the report of every run
