"""The HTTP server, which batches requests, and the explorer of images."""
