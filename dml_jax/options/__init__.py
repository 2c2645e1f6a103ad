"""Every option of a configuration with its meaning, its rules and its default.

    data, train, evaluation   the sections of every configuration
    backbones, methods        one module per backbone and method, with its `Config`
    decisions                 rules of classifying images by enrolled ones
    fields                    types with rules, and validation

Nothing here imports JAX, so that invalid values are reported at once.
"""
