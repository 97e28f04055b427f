"""The served models, and what answers with them."""
