"""AmoebaNet, an image classifier found by evolution (Real et al., 1802.01548)."""
