"""The torch model: configuration, weights, KV memory and the forward pass of Llama-like decoders."""
