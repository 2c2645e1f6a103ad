"""The HTTP server, which batches requests, and its page for browsers."""
