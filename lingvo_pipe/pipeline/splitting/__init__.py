"""Which layers make up which stage, of what they cost."""
