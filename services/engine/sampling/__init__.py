"""From a row of logits to a token: numpy only, one sequence never looks at another's row."""
