"""The layers of the package, from the lowest: a module imports only lower layers.

`__init__` is the module `dml_jax` itself, which loads models.
"""

LAYERS = (
    {"_version", "errors"},
    {"class_names", "console", "drawing", "files", "numerics"},
    {"seal"},
    {"buckets", "remote"},
    {"table"},
    {"config"},
    {"losses"},
    {"data", "backbones", "evaluation"},
    {"identity"},
    {"methods"},
    {"train"},
    {"export"},
    {"inference"},
    {"analysis", "__init__"},
    {"serving"},
    {"run"},
    {"analyses", "lab"},
    {"commands"},
)
