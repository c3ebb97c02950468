"""Transforms of images on their way from the data set to the batch."""
