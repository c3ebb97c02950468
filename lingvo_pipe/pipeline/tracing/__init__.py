"""Forward passes with their gradients, traced together and cut into phases."""
