"""How to run a model on devices that need not be there: cost model and search."""
