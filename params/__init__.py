"""Registered models: class X of `params.image.digits` is `--model=image.digits.X`."""
