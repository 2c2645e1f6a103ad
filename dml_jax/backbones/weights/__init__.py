"""Published weights: read, converted, compared and stored."""
