"""Registered models, by family: `params.image.digits.X` is `--model=image.digits.X`."""
