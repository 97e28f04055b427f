"""The served models, and the routes that answer with them."""
