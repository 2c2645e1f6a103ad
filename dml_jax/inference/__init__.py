"""A trained model applied to images: embeddings, indexes of enrolled classes, searches, Ray."""
