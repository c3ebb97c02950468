"""Models: lists of cells for a PipeliningLayer, and the tasks that train them."""
