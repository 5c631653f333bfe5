"""Text <-> token ids with the model's own tokenizer; used by every service that sees text or tokens."""
