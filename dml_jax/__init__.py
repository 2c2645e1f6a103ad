"""Deep metric learning for images in JAX: exact, fast, one paper in one file."""
