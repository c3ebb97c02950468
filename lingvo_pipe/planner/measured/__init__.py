"""Measurements on the devices of this machine, and plans from them."""
