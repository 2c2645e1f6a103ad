"""Downloads, and the client of the Hugging Face hub."""
